# A replica of the control plane: gRPC, HTTP, Raft, gossip, DNS.
# Built by make docker-build, which puts the static binary beside this file as "program".
FROM scratch
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY empty /tmp
COPY program /persys-scheduler
EXPOSE 8085 8084 8086 8088/tcp 8088/udp 8053/tcp 8053/udp
VOLUME /var/lib/persys/scheduler
ENTRYPOINT ["/persys-scheduler"]
