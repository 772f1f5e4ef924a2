# The image that runs Dragoman; docs/deploy.md says how to run it.
#
# Python has the minor version that CI tests with. Every RUN step works in any folder and without root:
# `make docker-steps` executes them in a scratch folder, because CI has no container daemon.

FROM python:3.11-slim AS build
WORKDIR /src
COPY requirements/ requirements/
RUN python -m venv /build \
 && /build/bin/python -m pip install --require-hashes --no-deps --only-binary :all: --no-cache-dir -r requirements/build.txt \
 && /build/bin/python -m pip check
RUN python -m venv /opt/dragoman \
 && /opt/dragoman/bin/python -m pip install --require-hashes --no-deps --only-binary :all: --no-cache-dir -r requirements/run.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY adapters/ adapters/
COPY dragoman/ dragoman/
COPY proxy/ proxy/
RUN /build/bin/python -m hatchling build --target wheel --directory /wheel \
 && /opt/dragoman/bin/python -m pip install --no-index --no-deps /wheel/dragoman-*.whl \
 && /opt/dragoman/bin/python -m pip check
# Made here because the image below runs no command as root; it is copied with its owner.
RUN mkdir -p /data

FROM python:3.11-slim
COPY --from=build /opt/dragoman /opt/dragoman
# A number needs no entry in /etc/passwd, and Kubernetes can see that it is not root.
COPY --from=build --chown=10001:10001 /data /data
ENV PATH=/opt/dragoman/bin:$PATH \
    HOME=/data \
    PYTHONUNBUFFERED=1
USER 10001:10001
# The configuration is /data/dragoman.toml and the journal is /data/dragoman.db, both by default.
# Without a configuration the proxy is healthy, has no backends and listens inside the container only:
# to be reached from outside it needs `listen = "0.0.0.0:8787"` and at least one key.
WORKDIR /data
VOLUME /data
EXPOSE 8787
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
  CMD ["dragoman", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["dragoman"]
CMD ["serve"]
