"""OTLP bytes and files to raw tables: sans-IO decoders, file formats, the importer."""

from tracekit.ingest.batch import Decoded, Rejected, stamp
from tracekit.ingest.otlp_json import decode_otlp_json
from tracekit.ingest.otlp_protobuf import decode_otlp_protobuf

__all__ = ["Decoded", "Rejected", "decode_otlp_json", "decode_otlp_protobuf", "stamp"]
