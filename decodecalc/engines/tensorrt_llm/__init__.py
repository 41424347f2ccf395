"""TensorRT-LLM's decode attention before Blackwell data-centre GPUs: XQA, MMHA, and the rule that picks one."""
