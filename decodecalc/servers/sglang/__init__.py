"""Which decode-attention backend an SGLang server runs."""
