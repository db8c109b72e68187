"""Renders results as text and Markdown; computes nothing and reads no store."""
