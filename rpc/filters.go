package rpc

import (
	"slices"
	"strings"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
)

// knownWord checks the value of a filter, in upper or lower case. Without this check a misspelt value would
// give an empty list. Values that only records of legacy v1 schedulers had are accepted too.
func knownWord[W ~string](field, given string, known []W, legacy ...W) error {
	same := func(w W) bool { return strings.EqualFold(string(w), given) }
	if given == "" || slices.ContainsFunc(known, same) || slices.ContainsFunc(legacy, same) {
		return nil
	}
	var words []string
	for _, w := range known {
		words = append(words, string(w))
	}
	return errorf(KindInvalid, "%s %q must be one of %s", field, clip(given, 64), strings.Join(words, ", "))
}

// validToken returns an error if a page token is invalid. The token is the last id of the previous page.
func validToken(token string) error {
	if token != "" && !bounds.ValidID(token) {
		return errorf(KindInvalid, "page_token %q must be the next_page_token of the page before", clip(token, 128))
	}
	return nil
}

// validFilter returns an error if the value of a filter must be an id but is no valid id. No record has
// such an id, so without the error the list would be empty.
func validFilter(field, id string) error {
	if id != "" && !bounds.ValidID(id) {
		return errorf(KindInvalid, "%s %q must be a letter or digit, then up to 127 letters, digits, '_', '.' or '-'", field, clip(id, 64))
	}
	return nil
}

// validSubject returns an error if no event can be about the workload that a filter of events names. An event may be
// about an orphan (an instance on a node without a record in the state), whose name may be an invalid id.
func validSubject(field, name string) error {
	if len(name) > fsm.MaxDriftID || strings.Contains(name, "/") {
		return errorf(KindInvalid, "%s %q must have at most %d bytes and no '/'", field, clip(name, 64), fsm.MaxDriftID)
	}
	return nil
}
