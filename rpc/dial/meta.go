package dial

// Metadata keys of Persys programs. Keys are lower-case, as HTTP/2 requires, and values are
// printable ASCII. Peers ignore unknown keys, so the keys do not change the contract.
const (
	// KeyLeader, a trailer: the gRPC address (host:port) that the leader advertises, unless the
	// answering replica leads. Clients make their next calls there.
	KeyLeader = "persys-leader"
	// KeyIndex, in a request: the decimal log index, from an earlier answer, that a session read
	// waits for.
	KeyIndex = "persys-index"
	// KeyStale, a trailer: "true" if the answer was served without the leader. It is absent
	// otherwise.
	KeyStale = "persys-stale"
	// KeyAgeMS, a trailer beside KeyStale: decimal milliseconds since the answering replica last
	// heard from a leader.
	KeyAgeMS = "persys-age-ms"
	// KeyRead, in a request: the consistency of a read, one of the Read* values. Absent means
	// linearizable.
	KeyRead = "persys-read"

	// KeyForwardedIdentity, in a forwarded request: the text form of the caller's pki.Identity. It
	// is trusted only from a peer with a scheduler's certificate, and ignored under -insecure
	// (rpc/DESIGN.md).
	KeyForwardedIdentity = "persys-forwarded-identity"
	// KeyFrom, in a forwarded request: the address of the original caller. It is trusted like
	// KeyForwardedIdentity, and from a gateway that names its user.
	KeyFrom = "persys-from"
	// KeyHop, in a request: "1" if a replica forwarded the call. It is not forwarded again.
	KeyHop = "persys-hop"
	// KeyOnBehalf, in a request of a gateway: the text form of the pki.Identity of its user. The
	// call has the rights that both have.
	KeyOnBehalf = "persys-on-behalf"
	// KeyIssued, beside KeyOnBehalf: when the user's certificate was issued, in decimal Unix
	// nanoseconds. It is compared with revocations of the user's name.
	KeyIssued = "persys-issued"
	// KeyUser, in a request of a gateway: its user as an OIDC token names it, "oidc:" and the
	// issuer's URL with the subject as fragment. It gives no rights and appears in the history.
	KeyUser = "persys-user"
	// KeyNamespaces, in a request: comma-separated namespaces to which the caller limits the call.
	// It only removes rights.
	KeyNamespaces = "persys-namespaces"
	// KeyRequestID, in a request: the UUIDv7 under which a mutation is applied at most once
	// (fsm/DESIGN.md). All attempts of one call have the same id.
	KeyRequestID = "persys-request-id"
)

// Values of KeyRead.
const (
	ReadLinearizable = "linearizable"
	ReadSession      = "session"
	ReadStale        = "stale"
)
