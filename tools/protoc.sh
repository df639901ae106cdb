#!/usr/bin/env bash
# Generates the Python code of api/octavo_api/v1/*.proto into OUT (default: api/, beside the sources).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-api}
python=${PYTHON:-.venv/bin/python}
"$python" -m grpc_tools.protoc -I api --python_out="$out" --pyi_out="$out" api/octavo_api/v1/*.proto
"$python" -m grpc_tools.protoc -I api --grpc_python_out="$out" api/octavo_api/v1/replica.proto api/octavo_api/v1/inference.proto
