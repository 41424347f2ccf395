"""Serve commands that people wrote in public documentation and threads, each with what it must resolve to."""

from __future__ import annotations

from typing import NamedTuple


class Real(NamedTuple):
    """One command: where it stands, the GPU it is for, the model where it names a path, and the answer."""

    url: str
    text: str
    gpu: str
    backend: str | None
    kernel: str | None
    page: int | None
    model: str | None = None
    tp: int = 1


K8S = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: vllm-server
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:latest
        command: ["/bin/sh", "-c"]
        args: [
          "vllm serve meta-llama/Llama-3.2-1B-Instruct"
        ]
        env:
        - name: HUGGING_FACE_HUB_TOKEN
          valueFrom:
            secretKeyRef:
              name: hf-token-secret
              key: token
        ports:
          - containerPort: 8000
"""
COMPOSE = """
services:
  vllm:
    image: swr.example.com/ddn-k8s/docker.io/vllm/vllm-openai:v0.26.0-cu129
    container_name: vllm-server
    ports:
      - "8526:8526"
    ipc: host
    volumes:
      - /hdd2/models/DeepSeek-V3:/model
    command: >
      /model
      --trust-remote-code
      --kv-cache-dtype fp8
      --enable-expert-parallel
      --tensor-parallel-size 4
      --max-num-batched-tokens 8192
      --gpu-memory-utilization 0.9
      --max-num-seqs 32
      --enable-auto-tool-choice
"""

# Expected answers follow the servers' own selection: vLLM's device lists with FLASH_ATTN as FlashAttention 3 on compute
# capability 9.0, 4 on 10.0 and 2 elsewhere; FLASHINFER first on 10.0, with trtllm-gen; SGLang's defaults for its
# architectures.
COMMANDS = (
    Real(
        "https://docs.vllm.com.cn/projects/recipes/en/latest/DeepSeek/DeepSeek-V3.html",
        "vllm serve deepseek-ai/DeepSeek-R1-0528 \\\n  --trust-remote-code \\\n  --tensor-parallel-size 8 \\\n"
        "  --enable-expert-parallel",
        "h200", "FLASH_ATTN_MLA", "fa3-mla", 16, tp=8,
    ),
    Real(
        "https://docs.vllm.com.cn/projects/recipes/en/latest/DeepSeek/DeepSeek-V3.html",
        "export VLLM_ATTENTION_BACKEND=CUTLASS_MLA\nexport VLLM_USE_FLASHINFER_MOE_FP8=1\n"
        "vllm serve deepseek-ai/DeepSeek-R1-0528 --trust-remote-code --tensor-parallel-size 8 --enable-expert-parallel",
        "b200", "FLASHINFER_MLA", "trtllm-gen-mla", 32, tp=8,
    ),
    Real(
        "https://docs.vllm.com.cn/projects/recipes/en/latest/DeepSeek/DeepSeek-V3.html",
        "CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve nvidia/DeepSeek-R1-FP4 --trust-remote-code --tensor-parallel-size 4 "
        "--enable-expert-parallel",
        "b200", "FLASHINFER_MLA", "trtllm-gen-mla", 32, tp=4,
    ),
    Real(
        "https://docs.vultr.com/inference-cookbook/cuda/model-guides/deepseek-v32",
        "vllm serve deepseek-ai/DeepSeek-V3-0324 --tensor-parallel-size 8 --max-model-len 32768 "
        "--gpu-memory-utilization 0.90 --trust-remote-code --quantization fp8 --block-size 1",
        "b200", None, None, None, tp=8,
    ),
    Real(
        "https://juejin.cn/post/7537505390113685546",
        "VLLM_ATTENTION_BACKEND=TRITON_ATTN_VLLM_V1 vllm serve /path/to/gpt-oss-20b --host 192.168.31.103 --port 8000 "
        "--served-model-name openai/gpt-oss-20b --tensor-parallel-size 1 --gpu-memory-utilization 0.9 "
        "--max-model-len 26384 --async-scheduling --uvicorn-log-level debug",
        "rtx4090", "TRITON_ATTN", "triton", 16,
    ),
    Real(
        "https://docs.gpustack.ai/2.3/zh/performance-lab/gpt-oss-120b/h100/",
        "vllm serve openai/gpt-oss-120b --async-scheduling -tp 2",
        "h100", "FLASH_ATTN", "fa3", 16, tp=2,
    ),
    Real(
        "https://github.com/vllm-project/vllm/issues/30919",
        "python3 -m vllm.entrypoints.openai.api_server --host 0.0.0.0 --port 8087 --model openai/gpt-oss-120b "
        "--tokenizer openai/gpt-oss-120b --dtype auto --kv-cache-dtype fp8 --tensor-parallel-size 8 "
        "--pipeline-parallel-size 1 --data-parallel-size 1 --swap-space 16 --max-num-seqs 1024 --trust-remote-code "
        "--max-model-len 2058 --gpu-memory-utilization 0.9 --max-num-batched-tokens 8192 --no-enable-prefix-caching "
        "--async-scheduling --stream-interval 20 --compilation_config.pass_config.fuse_allreduce_rms true "
        "--compilation_config.max_cudagraph_capture_size 2048",
        "b200", "FLASHINFER", "trtllm-gen", 16, tp=8,
    ),
    Real(
        "https://github.com/vllm-project/vllm/issues/21348",
        "CUDA_VISIBLE_DEVICES=0,1,2,3 \\\nvllm serve /path/to/Qwen3-235B-A22B-FP8 \\\n  --tensor-parallel-size 4 \\\n"
        '  --kv-transfer-config \'{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}\'',
        "h100", "FLASH_ATTN", "fa3", 16, tp=4,
    ),
    Real(
        "https://github.com/vllm-project/vllm/issues/21348",
        "python3 -m sglang.launch_server --model /path/to/Qwen3-235B-A22B-FP8 --tp 4 --trust-remote-code "
        "--host 0.0.0.0 --port 8000 --mem-fraction-static 0.93",
        "h100", "fa3", "fa3", 1, tp=4,
    ),
    Real(
        "https://github.com/vllm-project/vllm/issues/22177",
        "vllm serve \\\n  /models/Qwen3-Coder-30B-A3B-Instruct \\\n"
        "  --served-model-name Qwen3-Coder-30B-A3B-Instruct \\\n"
        "  --enable-auto-tool-choice --tool-call-parser hermes \\\n  --enable-expert-parallel \\\n"
        "  --tensor-parallel-size 8 \\\n  --gpu-memory-utilization 0.85 \\\n  --host 0.0.0.0 --port 21002",
        "a10g", "FLASH_ATTN", "fa2", 16, tp=8,
    ),
    Real(
        "https://github.com/flashinfer-ai/flashinfer/issues/2252",
        "VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve --model nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --dtype auto "
        "--trust-remote-code --served-model-name nemotron --host 0.0.0.0 --port 5000 --enable-auto-tool-choice "
        "--tool-call-parser qwen3_coder --reasoning-parser deepseek_r1",
        "rtx5090", "FLASH_ATTN", "fa2", None,
    ),
    Real(
        "https://github.com/vllm-project/vllm/pull/19492",
        "VLLM_ATTENTION_BACKEND=FLASH_ATTN vllm serve meta-llama/Llama-3.1-8B-Instruct",
        "b200", "FLASHINFER", "trtllm-gen", 16,
    ),
    Real(
        "https://github.com/ovg-project/kvcached/issues/210",
        "export ENABLE_KVCACHED=true\nexport VLLM_USE_V1=1\nvllm serve unsloth/Llama-3.1-70B-Instruct \\\n"
        "  --disable-log-requests \\\n  --no-enable-prefix-caching \\\n  --port 8001 \\\n"
        "  --tensor-parallel-size 8 \\\n  --enable-sleep-mode &",
        "a100-sxm", "FLASH_ATTN", "fa2", 16, tp=8,
    ),
    Real(
        "https://github.com/vllm-project/vllm/pull/12569",
        "VLLM_USE_V1=1 vllm serve neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8 --max-model-len 2048 "
        "--gpu-memory-utilization 0.98",
        "h100", "FLASH_ATTN", "fa3", 16,
    ),
    Real(
        "https://github.com/vllm-project/vllm/issues/6689",
        "vllm serve Meta-Llama-3___1-405B-Instruct-AWQ-INT4 \\\n    --port 8080 \\\n    --host 0.0.0.0 \\\n"
        "    --served-model-name llama-3.1-405b \\\n    --trust-remote-code \\\n    --max-model-len 8192 -q awq \\\n"
        "    --tensor-parallel-size 8 \\\n    --enable-chunked-prefill=false \\\n    --disable-log-requests",
        "a6000", "FLASH_ATTN", "fa2", 16, tp=8,
    ),
    Real("https://docs.vllm.ai/en/v0.8.2/deployment/k8s.html", K8S, "h100", "FLASH_ATTN", "fa3", 16),
    Real(
        "https://docs.vllm.ai/en/v0.4.0.post1/serving/deploying_with_docker.html",
        "$ docker run --runtime nvidia --gpus all \\\n    -v ~/.cache/huggingface:/root/.cache/huggingface \\\n"
        '    --env "HUGGING_FACE_HUB_TOKEN=<secret>" \\\n    -p 8000:8000 \\\n    --ipc=host \\\n'
        "    vllm/vllm-openai:latest \\\n    --model mistralai/Mistral-7B-v0.1",
        "h100", "FLASH_ATTN", "fa3", 16,
    ),
    Real(
        "https://github.com/vllm-project/vllm/issues/51041 (with another model)",
        COMPOSE, "h20", "FLASHMLA", "flashmla-fp8", 64, "deepseek-v3", 4,
    ),
    Real(
        "https://docs.sglang.io/basic_usage/deepseek_v32.html",
        "python -m sglang.launch_server --model deepseek-ai/DeepSeek-V3.2-Exp --tp 8 --dp 8 --enable-dp-attention",
        "h200", "dsa", "fa3", 64,
    ),
    Real(
        "https://huggingface.co/AQ-MedAI/Kimi-K2-Instruct-eagle3/commit/4db2f99a6729f9623efefcc7372ca2211af27db1",
        "python3 -m sglang.launch_server --model-path /models/Kimi-K2-Instruct --host 0.0.0.0 --port 30012 "
        "--trust-remote-code --attention-backend flashinfer --mem-fraction-static 0.9 --tp-size 8 "
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path AQ-MedAI/Kimi-K2-Instruct-eagle3 "
        "--speculative-num-steps 3",
        "b200", "flashinfer", "flashinfer-mla", 1, tp=8,
    ),
    Real(
        "https://mintlify.com/sgl-project/sglang/models/deepseek",
        "python3 -m sglang.launch_server \\\n  --model-path deepseek-ai/DeepSeek-R1 \\\n  --tp 8 \\\n"
        "  --trust-remote-code",
        "b200", "trtllm_mla", "trtllm-gen-mla", 64, tp=8,
    ),
    Real(
        "https://nvidia.github.io/TensorRT-LLM/torch/auto_deploy/advanced/serving_with_trtllm_serve.html",
        "trtllm-serve \\\n  meta-llama/Llama-3.1-8B-Instruct \\\n  --backend _autodeploy",
        "b200", "trtllm-gen", "trtllm-gen", None,
    ),
    Real(
        "https://github.com/InternLM/lmdeploy/issues/2724",
        "$ lmdeploy serve api_server meta-llama/Llama-3.1-70B-Instruct --tp 2  --dtype float16 --log-level INFO",
        "a100-sxm", "turbomind", "turbomind", None, tp=2,
    ),
)  # fmt: skip
