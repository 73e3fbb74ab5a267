# An image with the CPU backends. It runs as any user, without a home: docker run --user 1234 -p 8000:8000 sluice
FROM debian:bookworm AS build
WORKDIR /src
COPY . .
ARG COMMIT=""
RUN ./dev packages && \
    cmake --preset release -DSLUICE_TESTS=OFF -DSLUICE_BENCH=OFF -DSLUICE_COMMIT="$COMMIT" && \
    cmake --build build/release --target sluice && \
    cmake --install build/release --prefix /out

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /out /usr/local
# Models that are downloaded. Mount a volume here to keep them; any user may write.
ENV HF_HOME=/models
RUN mkdir -m 1777 /models
USER 65534
EXPOSE 8000
ENTRYPOINT ["sluice"]
CMD ["serve", "--host", "0.0.0.0"]
