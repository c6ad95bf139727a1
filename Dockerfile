# The demo in a container; results are in /work:
#   docker build -t killick .
#   docker build -t killick-gpu --build-arg BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04 .
#   docker run --rm -v "$PWD/results:/work" killick
ARG BASE=python:3.12-slim
FROM ${BASE}
RUN command -v python3 || (apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*)
RUN python3 -m venv /opt/killick
COPY pyproject.toml README.md LICENSE constraints.txt /src/
COPY src /src/src
RUN /opt/killick/bin/pip install --no-cache-dir --constraint /src/constraints.txt "/src[export]"
ENV PATH=/opt/killick/bin:$PATH
WORKDIR /work
CMD ["killick", "compare"]
