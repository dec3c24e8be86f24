package dial

// Keys of the metadata that Persys programs put beside a message. Every key is
// lower-case, as HTTP/2 asks, and its value is printable ASCII. A peer that
// does not know a key ignores it, so none of them changes the contract.
const (
	// KeyLeader, a trailer: the gRPC address (host:port) that the leader
	// advertises, from a replica that knows it to be another than itself.
	// Clients go there next.
	KeyLeader = "persys-leader"
	// KeyIndex, in a request: the decimal log index that a Session read has to
	// wait for, as an earlier answer told it.
	KeyIndex = "persys-index"
	// KeyStale, a trailer: "true" when the answer was served without asking a
	// leader. It is absent otherwise.
	KeyStale = "persys-stale"
	// KeyAgeMS, a trailer: decimal milliseconds since the answering replica
	// last heard from a leader. It goes with KeyStale.
	KeyAgeMS = "persys-age-ms"
	// KeyRead, in a request: the wished consistency of a read, one of the
	// Read* values. Absent means linearizable.
	KeyRead = "persys-read"

	// KeyForwardedIdentity, in a request: the text form of the caller's
	// pki.Identity. It is trusted only from a certificate of a scheduler, and
	// ignored under -insecure (DESIGN, decisions 7 and 14).
	KeyForwardedIdentity = "persys-forwarded-identity"
	// KeyFrom, in a request: the address that a call that was passed on came
	// from. It is trusted as KeyForwardedIdentity is, and from a gateway that says
	// for whom it calls.
	KeyFrom = "persys-from"
	// KeyHop, in a request: "1" once a replica has passed the call on. Such a
	// call is never forwarded again.
	KeyHop = "persys-hop"
	// KeyOnBehalf, in a request of a gateway: the text form of the pki.Identity of the
	// user for whom it makes the call, who may do no more there than by itself.
	KeyOnBehalf = "persys-on-behalf"
	// KeyIssued, beside KeyOnBehalf: when the user's certificate was issued, decimal Unix
	// nanoseconds, so that it is judged by the revocations of its name.
	KeyIssued = "persys-issued"
	// KeyUser, in a request of a gateway: for whom it makes the call where no certificate
	// says it, "oidc:" and the issuer's URL with the subject as its fragment. It gives no
	// rights; it is who the history names.
	KeyUser = "persys-user"
	// KeyNamespaces, in a request: namespaces, comma separated, that the caller narrows
	// itself to. It only ever takes rights away.
	KeyNamespaces = "persys-namespaces"
	// KeyRequestID, in a request: the UUIDv7 under which a mutation is applied
	// at most once (fsm/DESIGN.md). Every attempt of one call carries the
	// same one.
	KeyRequestID = "persys-request-id"
)

// Values of KeyRead.
const (
	ReadLinearizable = "linearizable"
	ReadSession      = "session"
	ReadStale        = "stale"
)
