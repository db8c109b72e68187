"""Which client libraries are watched, and turning all of them on and off."""
