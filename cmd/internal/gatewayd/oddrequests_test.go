package gatewayd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// inBand stands for an answer with status 200 whose field error_message has the reason of the refusal. The
// contract requires such an answer for a change that the scheduler understands but refuses.
const inBand = -1

// TestMalformedAndContradictoryRequestsAreRefused sends malformed and contradictory requests through a gateway to a scheduler, on
// /v1 and on the contract's routes. Each is refused with status 4xx, or with 200 and error_message (inBand),
// and with a text that names the fault. No request changes the stored state.
func TestMalformedAndContradictoryRequestsAreRefused(t *testing.T) {
	w := startWorldOf(t, nil, "", startScheduler)
	c := w.as("user/admin")
	for _, id := range []string{"web", "api"} {
		body := `{"workload_id":"` + id + `","desired_state":"stopped","spec":{"type":"container","container":{"image":"app:1"}}}`
		if code, text, _ := w.do(c, "POST", w.api+"/v1/workloads", body); code != 200 || strings.Contains(text, "error_message") {
			t.Fatalf("the apply of %s was answered %d %s", id, code, text)
		}
	}
	listed := func() string {
		code, text, _ := w.do(c, "GET", w.api+"/v1/workloads", "")
		var all struct {
			Workloads []struct {
				ID       string `json:"workload_id"`
				Revision string `json:"revision_id"`
				Desired  string `json:"desired_state"`
			}
		}
		if err := json.Unmarshal([]byte(text), &all); code != 200 || err != nil {
			t.Fatalf("the list of workloads was answered %d %s", code, text)
		}
		return fmt.Sprint(all.Workloads)
	}
	before := listed()

	const image = `"container":{"image":"app:1"}`
	spec := func(inside string) string {
		return `{"workload_id":"odd","spec":{"type":"container",` + inside + `}}`
	}
	first, second := "0190c1d2-0000-7000-8000-000000000000", "0190c1d2-0000-7000-8000-000000000001"
	both := []string{"POST /v1/workloads", "POST /workloads/schedule"}
	v1, legacy := both[:1], both[1:]
	for name, row := range map[string]struct {
		calls   []string
		body    string
		headers []string
		status  int // 0 means 400
		says    string
	}{
		"no body":                   {legacy, ``, nil, 0, "the body is empty"},
		"white space":               {legacy, " \n", nil, 0, "body"},
		"a truncated message":       {both, `{"workload_id":"odd","spec":{`, nil, 0, "ends in the middle"},
		"YAML":                      {both, "workload_id: odd", nil, 0, "line 1:1"},
		"a list":                    {both, `[]`, nil, 0, "unexpected token ["},
		"a text":                    {both, `"odd"`, nil, 0, "unexpected token"},
		"null":                      {both, `null`, nil, 0, "unexpected token null"},
		"two messages":              {both, `{"workload_id":"odd"} {"workload_id":"odd2"}`, nil, 0, "line 1:23: there is more"},
		"rubbish after the message": {both, spec(image) + "}", nil, 0, "there is more"},
		"a comment":                 {both, "// a comment\n" + spec(image), nil, 0, "line 1:1"},
		"a trailing comma":          {both, `{"workload_id":"odd",}`, nil, 0, "line 1:22"},
		"a byte order mark":         {both, "\ufeff" + spec(image), nil, 0, "byte order mark"},
		"UTF-16":                    {both, "\xff\xfe{\x00}\x00", nil, 0, "UTF-8"},
		"Latin-1":                   {both, spec(`"metadata":{"a":"caf` + "\xe9" + `"},` + image), nil, 0, "UTF-8"},
		"half a surrogate":          {both, spec(`"metadata":{"a":"\ud800"},` + image), nil, 0, `\\ud800 is half of a surrogate pair`},
		"a NUL in an id":            {both, `{"workload_id":"odd\u0000x","spec":{"type":"container",` + image + `}}`, nil, inBand, "workload_id"},
		"a NUL in a value":          {both, spec(`"container":{"image":"app:1","env":{"A":"a\u0000b"}}`), nil, inBand, "spec.container.env.A: must be text without NUL"},
		"a control character":       {both, "{\"workload_id\":\"o\x01dd\"}", nil, 0, "line 1:18"},
		"a field twice":             {both, `{"workload_id":"odd","workload_id":"odd2"}`, nil, 0, `duplicate field \"workload_id\"`},
		"a field twice, in snake_case and camelCase": {both, `{"workload_id":"odd","workloadId":"odd2"}`, nil, 0, `duplicate field \"workloadId\"`},
		"a field twice, deep inside":                 {both, spec(`"container":{"image":"app:1","image":"app:2"}`), nil, 0, `duplicate field \"image\"`},
		"a key twice":                                {both, spec(`"metadata":{"a":"b","a":"c"},` + image), nil, 0, `duplicate map key \"a\"`},
		"two kinds of workload":                      {both, spec(image + `,"compose":{"inline_yaml":"services: {a: {image: b}}"}`), nil, 0, "oneof"},
		"20,000 levels":                              {both, `{"workload_id":"odd","spec":` + strings.Repeat(`{"spec":`, 20_000), nil, 0, "depth"},
		"20,000 levels of an unknown field":          {legacy, `{"workload_id":"odd","x":` + strings.Repeat(`[`, 9_000) + strings.Repeat(`]`, 9_000) + `}`, nil, 0, "nested deeper than 100"},
		"an unknown field":                           {v1, spec(`"replicas":3,` + image), nil, 0, `unknown field \"replicas\"`},
		"NaN":                                        {both, spec(`"count":NaN,` + image), nil, 0, "line 1:"},
		"NaN as text":                                {both, spec(`"count":"NaN",` + image), nil, 0, "NaN"},
		"1e400":                                      {both, spec(`"count":1e400,` + image), nil, 0, "1e400"},
		"an integer over 32 bits":                    {both, spec(`"count":2147483648,` + image), nil, 0, "2147483648"},
		"an integer over 64 bits":                    {both, spec(`"resources":{"cpu_millicores":99999999999999999999},` + image), nil, 0, "99999999999999999999"},
		"an integer of 400 digits":                   {both, spec(`"count":1` + strings.Repeat("0", 400) + `,` + image), nil, 0, "10000"},
		"a fraction":                                 {both, spec(`"count":1.5,` + image), nil, 0, "1.5"},
		"a negative count":                           {both, spec(`"count":-1,` + image), nil, inBand, "count"},
		"a count over the limit":                     {both, spec(`"count":2147483647,` + image), nil, inBand, "count"},
		"negative memory":                            {both, spec(`"resources":{"memory_mb":-1},` + image), nil, inBand, "memory"},
		"a word for a number":                        {both, spec(`"count":"three",` + image), nil, 0, "three"},
		"a number for a text":                        {both, `{"workload_id":7}`, nil, 0, "7"},
		"a list for a message":                       {both, `{"workload_id":"odd","spec":[]}`, nil, 0, "unexpected token ["},
		"a message for a list":                       {both, spec(`"container":{"image":"app:1","ports":{"container_port":80}}`), nil, 0, "unexpected token {"},
		"null in a list":                             {both, spec(`"container":{"image":"app:1","command":["a",null]}`), nil, 0, "null"},
		"null for the id":                            {both, `{"workload_id":null,"spec":{"type":"container",` + image + `}}`, nil, 0, "workload_id"},
		"null for a map's value":                     {both, spec(`"metadata":{"a":null},` + image), nil, 0, "null"},
		"no id":                                      {both, `{"spec":{"type":"container",` + image + `}}`, nil, 0, "workload_id"},
		"an id with a slash":                         {both, `{"workload_id":"a/b","spec":{"type":"container",` + image + `}}`, nil, inBand, "workload_id"},
		"an id of two dots":                          {both, `{"workload_id":"..","spec":{"type":"container",` + image + `}}`, nil, inBand, "workload_id"},
		"a Cyrillic id":                              {both, `{"workload_id":"саse","spec":{"type":"container",` + image + `}}`, nil, inBand, "workload_id"},
		"an id of 4,000 characters":                  {both, `{"workload_id":"` + strings.Repeat("a", 4000) + `","spec":{"type":"container",` + image + `}}`, nil, inBand, "workload_id"},
		"no specification":                           {both, `{"workload_id":"odd"}`, nil, inBand, "odd"},
		"an unknown type":                            {both, `{"workload_id":"odd","spec":{"type":"unikernel",` + image + `}}`, nil, inBand, "unikernel"},
		"an unknown desired state":                   {v1, `{"workload_id":"odd","desired_state":"paused","spec":{"type":"container",` + image + `}}`, nil, 0, "paused"},
		"a body over 4 MiB":                          {both, spec(`"metadata":{"a":"` + strings.Repeat("x", 5<<20) + `"},` + image), nil, 413, "4194304 bytes"},
		"a form":                                     {both, "workload_id=odd", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "application/json"},
		"a JSON body as text":                        {both, spec(image), []string{"Content-Type", "text/plain"}, 415, "text/plain"},
		"an unreadable content type":                 {both, spec(image), []string{"Content-Type", "json;;"}, 415, "json;;"},
		"two content types":                          {both, spec(image), []string{"Content-Type", "application/json", "Content-Type", "text/plain"}, 0, "Content-Type"},
		"another character set":                      {both, spec(image), []string{"Content-Type", "application/json; charset=iso-8859-1"}, 415, "iso-8859-1"},
		"a compressed body":                          {both, "\x1f\x8b", []string{"Content-Encoding", "gzip"}, 415, "gzip"},
		"a parameter beside a body":                  {v1, spec(image), nil, 0, ""},

		"If-Match twice":                  {append([]string{"DELETE /v1/workloads/web", "DELETE /workloads/web"}, both...), ``, []string{"If-Match", `"1"`, "If-Match", `"2"`}, 0, "If-Match"},
		"If-Match without quotes":         {[]string{"DELETE /v1/workloads/web", "DELETE /workloads/web"}, ``, []string{"If-Match", `1`}, 0, "If-Match"},
		"If-Match of any revision":        {[]string{"DELETE /v1/workloads/web", "DELETE /workloads/web"}, ``, []string{"If-Match", `*`}, 0, "If-Match"},
		"If-Match with If-None-Match":     {[]string{"DELETE /v1/workloads/web", "DELETE /workloads/web"}, ``, []string{"If-Match", `"1"`, "If-None-Match", "*"}, 0, "If-None-Match"},
		"If-Match of a former version":    {[]string{"DELETE /v1/workloads/web", "DELETE /workloads/web"}, ``, []string{"If-Match", `"77"`}, 412, "77"},
		"Idempotency-Key twice":           {append([]string{"DELETE /v1/workloads/web", "DELETE /workloads/web"}, both...), spec(image), []string{"Idempotency-Key", first, "Idempotency-Key", second}, 0, "Idempotency-Key"},
		"an Idempotency-Key of no UUID":   {both, spec(image), []string{"Idempotency-Key", "1"}, 0, "UUID of version 7"},
		"an Idempotency-Key of version 4": {both, spec(image), []string{"Idempotency-Key", "7d7f0b7e-4b6f-4f37-9d6d-3b1a1b2c3d4e"}, 0, "UUID of version 7"},

		"a parameter twice":                       {[]string{"GET /v1/workloads?status=Running&status=Failed", "GET /workloads?status=Running&status=Failed", "GET /list?status=Running&status=Failed", "GET /nodes?status=Ready&status=Ready"}, ``, nil, 0, `parameter \"status\" is given twice`},
		"a parameter in snake_case and camelCase": {[]string{"GET /v1/workloads?page_size=1&pageSize=2"}, ``, nil, 0, "given twice"},
		"an unknown parameter":                    {[]string{"GET /v1/workloads?pagesize=10"}, ``, nil, 0, `unknown parameter \"pagesize\"`},
		"a query parameter that the path sets":    {[]string{"GET /v1/workloads/web?workload_id=api"}, ``, nil, 0, "part of the path"},
		"a negative page size":                    {[]string{"GET /v1/workloads?page_size=-1", "GET /v1/nodes?page_size=-1"}, ``, nil, 0, "page_size"},
		"a page size of 10,001":                   {[]string{"GET /v1/workloads?page_size=10001", "GET /v1/nodes?page_size=10001"}, ``, nil, 0, "page_size"},
		"a page size that is a word":              {[]string{"GET /v1/workloads?page_size=ten"}, ``, nil, 0, "ten"},
		"an invalid page token":                   {[]string{"GET /v1/workloads?page_token=%2fetc", "GET /v1/nodes?page_token=a%20b", "GET /v1/workloads?page_token=" + strings.Repeat("a", 4000)}, ``, nil, 0, "page_token"},
		"a page token that is not UTF-8":          {[]string{"GET /v1/workloads?page_token=%ff%fe"}, ``, nil, 0, "page_token"},
		"a page token with NUL":                   {[]string{"GET /v1/nodes?page_token=%00"}, ``, nil, 0, "page_token"},
		"an unknown status":                       {[]string{"GET /v1/workloads?status=Runnning", "GET /workloads?status=Runnning", "GET /list?status=Runnning"}, ``, nil, 0, "Runnning"},
		"an unknown node status":                  {[]string{"GET /v1/nodes?status=Redy", "GET /nodes?status=Redy"}, ``, nil, 0, "Redy"},
		"an unknown event type":                   {[]string{"GET /v1/events?types=WorkloadAppeared"}, ``, nil, 0, "WorkloadAppeared"},
		"an unknown read level":                   {[]string{"GET /v1/workloads?level=READ_LEVEL_FRESH"}, ``, nil, 0, "READ_LEVEL_FRESH"},
		"a bad escape":                            {[]string{"GET /v1/workloads?status=%zz", "GET /workloads?status=%zz"}, ``, nil, 0, "%zz"},
		"a semicolon between parameters":          {[]string{"GET /v1/workloads?status=Running;node_id=a", "GET /workloads?status=Running;node_id=a"}, ``, nil, 0, "semicolon"},
		"a parameter of 60,000 characters":        {[]string{"GET /v1/workloads?node_id=" + strings.Repeat("a", 60_000), "GET /workloads?node_id=" + strings.Repeat("a", 60_000)}, ``, nil, 0, "node_id"},
		"an id with a space":                      {[]string{"GET /v1/workloads/a%20b", "GET /workloads/a%20b", "GET /v1/nodes/a%20b", "GET /nodes/a%20b"}, ``, nil, 404, "a b"},
		"an id with NUL":                          {[]string{"GET /v1/workloads/a%00b", "GET /workloads/a%00b"}, ``, nil, 0, "control characters"},
		"an id with an escaped slash":             {[]string{"GET /v1/workloads/a%2fb"}, ``, nil, 404, "no route GET /v1/workloads/a/b"},
		"an id of 10,000 characters":              {[]string{"GET /v1/workloads/" + strings.Repeat("a", 10_000), "GET /workloads/" + strings.Repeat("a", 10_000)}, ``, nil, 0, "has 100"},
		"an id that does not exist":               {[]string{"GET /v1/workloads/nobody", "GET /workloads/nobody", "GET /v1/nodes/nobody", "GET /nodes/nobody"}, ``, nil, 404, "nobody"},
		"a trailing slash":                        {[]string{"GET /workloads/", "GET /nodes/", "GET /v1/workloads/web/"}, ``, nil, 404, "no route GET"},
		"a trailing slash for an id":              {[]string{"GET /v1/workloads/", "GET /v1/nodes/"}, ``, nil, 0, "must not be blank"},
		"a delete of an id with a space":          {[]string{"DELETE /v1/workloads/a%20b", "DELETE /workloads/a%20b"}, ``, nil, inBand, "a b"},
		"a node id with a space":                  {[]string{"GET /v1/workloads?node_id=a%20b", "GET /workloads?node_id=a%20b", "GET /v1/events?node_id=a%20b"}, ``, nil, 0, "node_id"},
		"an invalid group name":                   {[]string{"GET /v1/workloads?group=-"}, ``, nil, 0, "group"},
		"null for an id and a word for a boolean": {[]string{"POST /v1/nodes/web/cordon"}, `{"node_id":null,"on":"yes"}`, nil, 0, "yes"},
		"PATCH":                             {[]string{"PATCH /v1/workloads/web", "PATCH /v1/workloads", "PATCH /workloads/web", "PATCH /nodes"}, `{}`, nil, 405, "no route PATCH"},
		"PUT":                               {[]string{"PUT /v1/workloads/web", "PUT /workloads/web"}, `{}`, nil, 405, "no route PUT"},
		"an unknown method":                 {[]string{"FETCH /v1/workloads/web", "FETCH /workloads/web"}, ``, nil, 405, "no route FETCH"},
		"an unknown route":                  {[]string{"GET /v1/pods", "GET /pods", "GET /v2/workloads"}, ``, nil, 404, "no route GET"},
		"an unknown cluster":                {[]string{"GET /clusters/other/v1/workloads", "GET /clusters/other/workloads", "GET /v1/workloads?cluster_id=other"}, ``, nil, 0, "other"},
		"a body for a call that takes none": {[]string{"DELETE /v1/workloads/web"}, `{"force":true}`, nil, 0, "takes no body"},
		"different ids in body and path":    {[]string{"POST /v1/nodes/web/cordon"}, `{"node_id":"api"}`, nil, 0, "but the path has"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, call := range row.calls {
				method, path, _ := strings.Cut(call, " ")
				if name == "a parameter beside a body" {
					path += "?workload_id=odd"
				}
				body := row.body
				if body == "" && strings.HasPrefix(name, "If-Match twice") && method == "POST" {
					body = spec(image)
				}
				code, text := w.odd(t, c, method, path, body, row.headers)
				want := cmp.Or(row.status, http.StatusBadRequest)
				if want == inBand && strings.Contains(text, `"error_message":`) && !strings.Contains(text, `"success":true`) {
					want = http.StatusOK
				}
				if len(path) > 100 {
					path = path[:100]
				}
				if code != want || !strings.Contains(text, row.says) {
					t.Errorf("%s %s was answered %d %.400s, want %d with %q", method, path, code, text, want, row.says)
				}
			}
		})
	}
	if after := listed(); after != before {
		t.Errorf("the refused requests must change nothing, but the list of workloads was %s and is %s", before, after)
	}
}

// odd sends a request with a list of headers, in which a header may occur several times. It returns the status and the
// text of the error.
func (w *world) odd(t *testing.T, c *http.Client, method, path, body string, headers []string) (int, string) {
	t.Helper()
	u, err := url.Parse(w.api)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, w.api+"/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	u.Opaque = "//" + u.Host + path // Opaque sends the path exactly as the case has it
	req.URL = u
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %.100s: %v", method, path, err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(out)
}

// TestCloudInitOverHTTP: the gateway refuses user data that cloud-init would ignore, on /v1 and on the
// contract's route, and accepts each form of user data that cloud-init supports.
func TestCloudInitOverHTTP(t *testing.T) {
	w := startWorldOf(t, nil, "", startScheduler)
	c := w.as("user/admin")
	for name, row := range map[string]struct{ text, says string }{
		"a configuration":        {"#cloud-config\npackages: [vim]\n", ""},
		"base64":                 {"I2Nsb3VkLWNvbmZpZwp1c2VyczogW10K", ""},
		"base64 of gzip":         {"H4sIAAAAAAAAA1POyS9N0U3Oz0vLTOcCAM5l2ZIOAAAA", "is compressed with gzip"},
		"MIME":                   {"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/cloud-config\n\na: b\n--b--\n", ""},
		"MIME without its end":   {"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/cloud-config\n\na: b\n", "the last line must be --b--"},
		"no first line":          {"packages: [vim]\n", "must begin with a line that cloud-init knows"},
		"a byte order mark":      {"\ufeff#cloud-config\n", "byte order mark"},
		"NUL":                    {"#cloud-config\na: \x00\n", "NUL"},
		"a list":                 {"#cloud-config\n- a\n", "(line 2)"},
		"a script from Windows":  {"#!/bin/sh\r\necho\r\n", "Windows line ends"},
		"300 KiB":                {"#cloud-config\n#" + strings.Repeat("x", 300<<10), "at most 262144"},
		"an include without URL": {"#include\n", "without a URL"},
	} {
		text, err := json.Marshal(row.text)
		if err != nil {
			t.Fatal(err)
		}
		body := `{"workload_id":"guest","desired_state":"stopped","spec":{"type":"vm","vm":{"vcpus":1,"memory_mb":512,"os_image":"/x.qcow2","disks":[{"size_gb":1}],"cloud_init":{"user_data":` + string(text) + `}}}}`
		for _, path := range []string{"/v1/workloads", "/workloads/schedule"} {
			code, got, _ := w.do(c, "POST", w.api+path, body)
			if code != 200 || strings.Contains(got, `"error_message"`) != (row.says != "") || !strings.Contains(got, row.says) || row.says != "" && !strings.Contains(got, "cloud_init") {
				t.Errorf("%s: user data with %s was answered %d %.300s, want %q", path, name, code, got, row.says)
			}
		}
	}
}
