# The service in a small image without CUDA: simulated devices work anywhere. For a GPU, run it with
# NVIDIA's container toolkit and mount or install the CUDA 13 libraries: see docker-compose.yml.
FROM rust:1.94-slim-trixie AS build
# A C compiler for the bundled SQLite is all that the build needs beside Rust.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
ENV SQLX_OFFLINE=true
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin batchfit \
 && cp target/release/batchfit /usr/local/bin/batchfit

FROM debian:13.2-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/batchfit --create-home batchfit
COPY --from=build /usr/local/bin/batchfit /usr/local/bin/batchfit
USER batchfit
WORKDIR /var/lib/batchfit
VOLUME /var/lib/batchfit
EXPOSE 8080
# It writes below /var/lib/batchfit and to /tmp alone: run it with a read-only root, as docker-compose.yml does.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080; printf 'GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3; read -r _ status _ <&3; [ \"$status\" = 200 ]"]
# It answers to localhost and to addresses; names that it is reached under go into BATCHFIT_ALLOWED_HOST.
ENTRYPOINT ["batchfit"]
CMD ["serve", "--listen", "0.0.0.0:8080", "--database", "sqlite:/var/lib/batchfit/batchfit.db"]
