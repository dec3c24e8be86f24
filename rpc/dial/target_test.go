package dial

import (
	"reflect"
	"strings"
	"testing"
)

func TestTargetsAreParsed(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want Target
		err  string
	}{
		{in: "a", want: Target{Addrs: []string{"a:8085"}}},
		{in: "a:1, b:2,,a:1", want: Target{Addrs: []string{"a:1", "b:2"}}},
		{in: "10.0.0.1", want: Target{Addrs: []string{"10.0.0.1:8085"}}},
		{in: "::1", want: Target{Addrs: []string{"[::1]:8085"}}},
		{in: "[::1]", want: Target{Addrs: []string{"[::1]:8085"}}},
		{in: "[::1]:99", want: Target{Addrs: []string{"[::1]:99"}}},
		{in: "srv://persys.local", want: Target{SRV: "persys.local"}},
		{in: "srv://_persys._tcp.x.?dns=10.0.0.2,ns:5353", want: Target{SRV: "_persys._tcp.x", DNS: []string{"10.0.0.2:53", "ns:5353"}}},
		{in: "persys:///persys.local?dns=10.0.0.2", want: Target{SRV: "persys.local", DNS: []string{"10.0.0.2:53"}}},
		{in: "srv://x?service=_p&hosts=p.x,p", want: Target{SRV: "x", Service: "p", Hosts: []string{"p.x", "p"}}},
		{in: "persys:///", err: "not a DNS name"},
		{in: "persys://a", err: "1..65535"},
		{in: "", err: "no address"},
		{in: " , ", err: "no address"},
		{in: ":8085", err: `host ""`},
		{in: "a:0", err: "1..65535"},
		{in: "a:65536", err: "1..65535"},
		{in: "a:http", err: `port "http"`},
		{in: "http://a:80", err: "not host:port"},
		{in: "a:1:2", err: "not host:port"},
		{in: "a b:1", err: "bad host"},
		{in: strings.Repeat("a,", 1) + func() (s string) {
			for i := range 70 {
				s += "h" + strings.Repeat("x", i) + ","
			}
			return
		}(), err: "limit 64"},
		{in: "srv://", err: "not a DNS name"},
		{in: "srv://a/b", err: "not a DNS name"},
		{in: "srv://a:53", err: "not a DNS name"},
		{in: "srv://a?ttl=1", err: `unknown option "ttl"`},
		{in: "srv://a?dns=", err: "no address"},
		{in: "srv://a?dns=x:y", err: `port "y"`},
		{in: "srv://a?service=", err: `service: "" is not a DNS name`},
		{in: "srv://a?service=_", err: `service: "" is not a DNS name`},
		{in: "srv://a?hosts=b,,c", err: `hosts: "" is not a DNS name`},
		{in: "srv://a?hosts=b:1", err: `hosts: "b:1" is not a DNS name`},
		{in: "srv://a?hosts=b" + strings.Repeat(",b", 64), err: "hosts: 65 names, limit 64"},
		{in: "srv://a?%zz", err: "invalid URL escape"},
	} {
		got, err := ParseTarget(tc.in)
		switch {
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("ParseTarget of %.60q returned %v, %v; want an error with %q", tc.in, got, err, tc.err)
			}
		case err != nil || !reflect.DeepEqual(got, tc.want):
			t.Errorf("ParseTarget of %q returned %+v, %v; want %+v", tc.in, got, err, tc.want)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	f.Add("srv://a.b?dns=1.2.3.4")
	f.Add("a:1,[::1]:2")
	f.Add("srv://a?service=_b&hosts=c,d.e")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTarget(s)
		if err == nil && (got.SRV == "") == (len(got.Addrs) == 0) {
			t.Fatalf("ParseTarget of %q returned %+v, want either an SRV name or addresses", s, got)
		}
	})
}
