"""Which decode-attention backend a vLLM server runs."""
