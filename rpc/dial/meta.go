package dial

// Keys of gRPC metadata between Persys programs. Keys are lower-case, as HTTP/2 requires, and values are
// printable ASCII. Legacy v1 peers ignore keys that they do not know, so the keys do not change the contract
// with them.
const (
	// KeyLeader, in a trailer: the gRPC address (host:port) that the leader advertises. Clients make their
	// next calls there. The leader itself does not send the key.
	KeyLeader = "persys-leader"
	// KeyIndex, in a request: a log index from an earlier answer, in decimal. A session read waits until the
	// replica has applied this index.
	KeyIndex = "persys-index"
	// KeyStale, in a trailer: "true" if the read was answered without the leader and may be out of date.
	// Otherwise the key is absent.
	KeyStale = "persys-stale"
	// KeyAgeMS, in a trailer with KeyStale: the time since the answering replica last heard from a leader,
	// in milliseconds, in decimal.
	KeyAgeMS = "persys-age-ms"
	// KeyJudged, in a trailer: "true" if the answer to a mutation is the verdict of the state machine on the
	// request id. Without this key, a refusal says nothing about the outcome of earlier attempts of the same
	// call.
	KeyJudged = "persys-judged"
	// KeyRead, in a request: the consistency of a read, one of the values Read*. Without the key, the read
	// is linearizable.
	KeyRead = "persys-read"

	// KeyForwardedIdentity, in a forwarded request: the caller's pki.Identity as text. It is trusted only if
	// the sender has a scheduler's certificate, and ignored under -insecure (rpc/DESIGN.md).
	KeyForwardedIdentity = "persys-forwarded-identity"
	// KeyFrom, in a forwarded request: the address of the original caller. It is trusted in the same cases
	// as KeyForwardedIdentity, and also from a gateway that names its user.
	KeyFrom = "persys-from"
	// KeyHop, in a request: "1" if a replica has forwarded the call, which must then not be forwarded again.
	KeyHop = "persys-hop"
	// KeyOnBehalf, in a request of a gateway: the pki.Identity of its user as text. The call then has only
	// the rights that both the gateway and the user have.
	KeyOnBehalf = "persys-on-behalf"
	// KeyIssued, with KeyOnBehalf: the time at which the user's certificate was issued, in decimal Unix
	// nanoseconds. It is compared with revocations of the user.
	KeyIssued = "persys-issued"
	// KeyUser, in a request of a gateway: the user whom an OIDC token names, as "oidc:" and the issuer's URL
	// with the subject as fragment. It gives no rights; the history shows it.
	KeyUser = "persys-user"
	// KeyAccess, with KeyUser: the built-in role that the gateway gives to this user, or "none". The call
	// then has only the rights that both the gateway and this role have. Without KeyAccess it has the rights
	// of the gateway.
	KeyAccess = "persys-access"
	// KeyNamespaces, in a request: the namespaces to which the caller limits this call, separated by commas.
	// With KeyAccess they limit the namespaces of the role. The key can only take rights away.
	KeyNamespaces = "persys-namespaces"
	// KeyGroups, beside KeyUser: the groups of the user's OIDC token, see EncodeGroups. The user also has the roles
	// that are bound to these groups.
	KeyGroups = "persys-groups"
	// KeyAccountToken, in a request of a gateway: the bearer token of the account for which it calls. The schedulers
	// compare the token's hash with the hash in the account's record.
	KeyAccountToken = "persys-account-token"
	// KeyAccount, in a request of a gateway: the account for which it calls. The gateway has verified a token
	// of the account's OIDC issuer.
	KeyAccount = "persys-account"
	// KeyConsole, in a request of a gateway: the session token of the user of the web console on whose behalf the gateway
	// calls. The schedulers check the token, and the call has the rights of that user.
	KeyConsole = "persys-console"
	// KeyRequestID, in a request: the UUIDv7 of a mutation, under which the mutation is applied at most once
	// (fsm/DESIGN.md). All attempts of one call have the same id.
	KeyRequestID = "persys-request-id"
	// KeyRequestHash, in a forwarded mutation: the hash of the call that the first replica received, in
	// hexadecimal. It is trusted only from schedulers.
	KeyRequestHash = "persys-request-hash"
)

// The values of KeyRead.
const (
	ReadLinearizable = "linearizable"
	ReadSession      = "session"
	ReadStale        = "stale"
)
