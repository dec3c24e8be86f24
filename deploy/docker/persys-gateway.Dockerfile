# The gateway, which serves REST and the console, with its API port and its public port. Built by make docker-build,
# which puts the static binary persys and the link beside this file.
FROM scratch
COPY persys /persys
COPY link /
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --chown=65532:65532 empty /tmp
EXPOSE 8551 8585
COPY --chown=65532:65532 empty /var/lib/persys/gateway
USER 65532:65532
ENV PERSYS_GATEWAY_STATE_DIR=/var/lib/persys/gateway
ENTRYPOINT ["/persys-gateway"]
