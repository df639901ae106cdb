# syntax=docker/dockerfile:1
# Head, gateways and engines of a ServingDeployment, on NVIDIA GPUs: as server.Dockerfile, with torch's CUDA build.
#
#   docker build -f docker/server-cuda.Dockerfile -t octavo-server:0.1.0-cuda .
#
# CUDA itself comes with torch's packages, so BASE is the same plain Python; the driver comes from the node.
ARG BASE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ARG HATCHLING=1.33.0
# A mirror of the package index; not given, it is the public one.
ARG PIP_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# At the place where it runs later: scripts in a virtual environment name their interpreter by its path.
RUN python3 -m venv /opt/octavo && python3 -m venv /opt/build && /opt/build/bin/pip install --quiet "hatchling==${HATCHLING}"
COPY docker/requirements/server-cuda.txt /src/requirements.txt
# --no-deps: the file is the whole closure, so nothing is resolved anew.
RUN /opt/octavo/bin/pip install --quiet --no-deps --requirement /src/requirements.txt
COPY pyproject.toml README.md LICENSE /src/
COPY api /src/api
COPY text /src/text
COPY kernels /src/kernels
COPY replicas /src/replicas
COPY router /src/router
COPY operator /src/operator
COPY cli /src/cli
RUN cd /src && /opt/build/bin/hatchling build -t wheel -d /dist && /opt/octavo/bin/pip install --quiet --no-deps /dist/*.whl

FROM ${BASE}
LABEL org.opencontainers.image.title="octavo-server" \
      org.opencontainers.image.description="Octavo's engine and router under Ray Serve, for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
# KubeRay starts Ray by bash, and its probes of head and engine pods call wget and grep in them.
# gcc, libc6-dev and Python's headers stay in the image: when a kernel is first launched, Triton compiles a small C
# module that launches it, against Python.h. python3-dev is Debian's Python's; python: images carry their own headers.
# uid 1000 as in Ray's own images, so that volumes can be shared with them.
RUN apt-get update && apt-get install --yes --no-install-recommends \
        bash wget grep procps ca-certificates libgomp1 gcc libc6-dev \
    && if ! python3 -c 'import os, sysconfig; raise SystemExit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; \
       then apt-get install --yes --no-install-recommends python3-dev; fi \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 ray && useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash ray \
    && install -d -o 1000 -g 1000 /octavo /octavo/cache
COPY --from=build /opt/octavo /opt/octavo
# A login shell sets PATH anew; these it finds all the same.
RUN ln -s /opt/octavo/bin/ray /opt/octavo/bin/octavo /usr/local/bin/
ENV PATH=/opt/octavo/bin:$PATH PYTHONUNBUFFERED=1 HOME=/home/ray HF_HOME=/octavo/cache RAY_USAGE_STATS_ENABLED=0 \
    TRITON_CACHE_DIR=/tmp/triton NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /home/ray
USER 1000:1000
CMD ["bash"]
