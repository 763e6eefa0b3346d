# vLLM on CPU with NIXL and a tiny model: docker build -f images/vllm-cpu.Dockerfile -t phasewise/vllm-cpu images/vllm-cpu
ARG BASE=python:3.11-slim
FROM ${BASE}
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

RUN ldconfig -p | grep -q libnuma.so.1 \
    || (apt-get update && apt-get install -y --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*)

COPY constraints.txt stand_in_for_cuda.py /opt/phasewise/
# Byte code is compiled here because the root file system of a pod is read-only: importing takes twice as long without.
RUN python3 -m venv /tmp/installer && /tmp/installer/bin/pip install --quiet --no-cache-dir uv==0.13.9 \
    && python3 -m venv --without-pip /opt/venv \
    && /tmp/installer/bin/uv pip install --python /opt/venv/bin/python --no-cache --no-deps --compile-bytecode \
        --requirements /opt/phasewise/constraints.txt \
    && python3 /opt/phasewise/stand_in_for_cuda.py /opt/venv/lib/python3*/site-packages \
    && rm -rf /tmp/installer

COPY make_tiny_model.py inspect_model.py /opt/phasewise/
ENV VLLM_TARGET_DEVICE=cpu PHASEWISE_VLLM_CACHE_SEED=/opt/phasewise/vllm-cache
RUN python3 /opt/phasewise/make_tiny_model.py /opt/models/tiny \
    && HOME=/tmp/home VLLM_CACHE_ROOT=/opt/phasewise/vllm-cache python3 /opt/phasewise/inspect_model.py /opt/models/tiny \
    && rm -rf /tmp/home && chmod -R a+rX /opt/models /opt/phasewise

USER 65532:65532
