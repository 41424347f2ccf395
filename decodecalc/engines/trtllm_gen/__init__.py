"""trtllm-gen: NVIDIA's precompiled attention kernels for Blackwell, as FlashInfer's host code launches them."""
