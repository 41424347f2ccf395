"""llama.cpp: the CUDA FlashAttention kernels of ggml."""
