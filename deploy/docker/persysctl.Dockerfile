# The command line.
# Built by make docker-build, which puts the static binary beside this file as "program".
FROM scratch
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY empty /tmp
COPY program /persysctl
ENTRYPOINT ["/persysctl"]
