# The static binary and nothing else. `make image` builds both; scripts/image.sh reads this file where there is no docker engine.
FROM scratch
ARG BINARY=stoke
COPY --chmod=0755 ${BINARY} /usr/local/bin/stoke
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/stoke"]
