# The command line.
# Built by make docker-build, which puts the static binary beside this file as "program".
FROM scratch
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --chown=65532:65532 empty /tmp
COPY program /persysctl
USER 65532:65532
ENTRYPOINT ["/persysctl"]
