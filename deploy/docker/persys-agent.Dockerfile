# The agent, with its gRPC and HTTP ports. Mount the Docker socket to let the agent run containers. It runs as root: the
# engine's socket gives root's rights anyway, and volumes are mounted. Built by make docker-build, which puts the static
# binary persys and the link beside this file.
FROM scratch
COPY persys /persys
COPY link /
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY empty /tmp
EXPOSE 50051 8089
VOLUME /var/lib/persys
ENTRYPOINT ["/persys-agent"]
