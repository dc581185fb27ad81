# The coordinator. It listens beyond the container only with TLS or behind a proxy that terminates
# TLS. Build it with
#   docker build -t fedclust .
# and run it with compose.yaml, or as docs/operations.md explains.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY client_sdk client_sdk
COPY service service
COPY docs/openapi/openapi.json docs/openapi/openapi.json
RUN python -m venv /opt/fedclust \
    && /opt/fedclust/bin/python -m pip install --no-cache-dir \
        ".[service,postgres]" ./client_sdk/fedclust_dual

FROM python:3.12-slim-bookworm
# The font is for figures as PNG. Its version is that of the image's Debian.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends fonts-dejavu-core \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 fedclust \
    && useradd --system --uid 10001 --gid fedclust --shell /usr/sbin/nologin \
        --home-dir /var/lib/fedclust --create-home fedclust \
    && chmod 0700 /var/lib/fedclust
COPY --from=build /opt/fedclust /opt/fedclust
ENV PATH=/opt/fedclust/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 \
    FEDCLUST_DATA_DIR=/var/lib/fedclust
USER 10001:10001
WORKDIR /var/lib/fedclust
VOLUME /var/lib/fedclust
EXPOSE 8400
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8400, timeout=5); c.request('GET', '/readyz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["fedclust-service"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8400"]
