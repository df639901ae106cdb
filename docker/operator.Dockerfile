# syntax=docker/dockerfile:1
# The operator: `octavo operator`. No torch, no Ray.
#
#   docker build -f docker/operator.Dockerfile -t octavo-operator:0.1.0 .
#
# BASE is any image with Python 3.11 or 3.12 that can make virtual environments.
ARG BASE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ARG HATCHLING=1.33.0
# A mirror of the package index; not given, it is the public one.
ARG PIP_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# At the place where it runs later: scripts in a virtual environment name their interpreter by its path.
RUN python3 -m venv /opt/octavo && python3 -m venv /opt/build && /opt/build/bin/pip install --quiet "hatchling==${HATCHLING}"
COPY docker/requirements/operator.txt /src/requirements.txt
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
RUN cd /src && /opt/build/bin/hatchling build -t wheel -d /dist \
    && /opt/octavo/bin/pip install --quiet --no-deps /dist/*.whl \
    && /opt/octavo/bin/pip uninstall --quiet --yes pip setuptools \
    && find /opt/octavo -name tests -type d -prune -exec rm -rf {} +

FROM ${BASE}
LABEL org.opencontainers.image.title="octavo-operator" \
      org.opencontainers.image.description="Reconciles ServingDeployments into KubeRay and Ray Serve" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/octavo /opt/octavo
# Byte code is in the image (pip writes it), so a read-only root costs no start-up time.
ENV PATH=/opt/octavo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
# A number, so that runAsNonRoot can be checked without /etc/passwd.
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["octavo"]
CMD ["operator"]
