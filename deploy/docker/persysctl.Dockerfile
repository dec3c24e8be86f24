# The command line, persysctl. Built by make docker-build, which puts the static binary persys and the link beside this
# file.
FROM scratch
COPY persys /persys
COPY link /
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --chown=65532:65532 empty /tmp
USER 65532:65532
ENTRYPOINT ["/persysctl"]
