# One image for every role; docker-compose.yml shows its use.
#
#   docker build -t swarm .                                    for CPUs
#   docker build -t swarm:cuda --build-arg TORCH=cuda .        for NVIDIA GPUs, with vLLM and adapters; over 10 GB
#   docker run --gpus all --ipc host swarm:cuda join ...       needs the NVIDIA container toolkit
#
# The classic builder and BuildKit both take it. BASE_IMAGE is any Debian-like image with Python 3.11 or newer and venv.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

ARG TORCH=cpu

# A few dependencies are compiled; images of Python bring its headers, Debian's python3 does not.
FROM ${BASE_IMAGE} AS compiler
RUN headers=$(python3 -c "import os, sysconfig as s; print('' if os.path.exists(s.get_path('include')) else 'python3-dev')") \
    && apt-get update -q && apt-get install -qy --no-install-recommends g++ libc6-dev $headers \
    && rm -rf /var/lib/apt/lists/*

FROM compiler AS build
ARG TORCH
# Where packages come from, as pip reads these variables; an empty one leaves pip's default.
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ARG PIP_FIND_LINKS=
ARG PIP_NO_CACHE_DIR=1
WORKDIR /opt/swarm

# Dependencies, before the code: a layer that edits of the code leave alone. Empty packages stand in for it; an editable
# installation finds the real ones in their place later. What only developers need goes: headers, tests, installers.
COPY pyproject.toml ./
COPY .ci/constraints.txt .ci/hashes.txt .ci/install .ci/
RUN mkdir swarm nodes && touch README.md swarm/__init__.py nodes/__init__.py && python3 -m venv /opt/venv \
    && if [ "$TORCH" = cuda ]; then /opt/venv/bin/pip install --constraint .ci/constraints.txt torch; fi \
    && bash .ci/install /opt/venv \
    && if [ "$TORCH" = cuda ]; then bash .ci/install /opt/venv lora && bash .ci/install /opt/venv gpu; fi \
    && cd /opt/venv/lib/python3*/site-packages \
    && rm -rf torch/include torch/test pyarrow/include pyarrow/tests pip pip-*.dist-info uv uv-*.dist-info ../../../bin/uv* \
    && for name in matplotlib networkx numpy pandas scipy sympy; do \
        find $name -type d -name tests -prune -exec rm -rf {} +; done

# The embedded policy is made here, once, and not by every container at its first start: it takes 20 seconds of a core,
# is half a megabyte, and the same every time.
COPY nodes nodes
COPY swarm swarm
COPY docs docs
COPY examples examples
RUN /opt/venv/bin/python -m compileall -q nodes swarm \
    && XDG_CACHE_HOME=/opt/cache /opt/venv/bin/python -c "from swarm.policy.tiny import ensure_tiny; ensure_tiny()"

# On GPUs, Triton compiles what `update.compile` runs when it is first used: that image keeps the compiler.
FROM compiler AS final-cuda
FROM ${BASE_IMAGE} AS final-cpu
FROM final-${TORCH}
RUN useradd --uid 1000 --create-home swarm && install -d -o swarm -g swarm /data /data/runs /data/addresses /data/hub
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/swarm /opt/swarm
COPY --from=build --chown=swarm:swarm /opt/cache /home/swarm/.cache
ENV PATH=/opt/venv/bin:$PATH \
    HF_HOME=/data/hub \
    MPLCONFIGDIR=/tmp/matplotlib \
    XDG_CACHE_HOME=/home/swarm/.cache \
    VLLM_CACHE_ROOT=/data/runs/.cache/vllm \
    TRITON_CACHE_DIR=/data/runs/.cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/data/runs/.cache/kernels \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER swarm
# Nodes keep identity, checkpoints and metrics under ./runs, with what is compiled for a GPU, which is code and therefore no
# other container's to write; models of the hub go to /data/hub, addresses for others to /data/addresses: volumes, all.
WORKDIR /data
HEALTHCHECK --interval=15s --timeout=15s --start-period=3m --retries=3 CMD ["swarm", "health"]
ENTRYPOINT ["swarm"]
