# The REST gateway and console: API and public port.
# Built by make docker-build, which puts the static binary beside this file as "program".
FROM scratch
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY empty /tmp
COPY program /persys-gateway
EXPOSE 8551 8585
ENTRYPOINT ["/persys-gateway"]
