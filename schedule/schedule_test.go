package schedule

import (
	"strings"
	"testing"
	"time"
)

// TestTimes: Next returns the expected times after a moment, in particular when the clock is set forward or
// back for daylight saving time.
func TestTimes(t *testing.T) {
	for _, c := range []struct {
		name, expression, zone, after string
		want                          string
	}{
		{"each minute", "* * * * *", "", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z 2026-01-01T00:02:00Z"},
		{"after a moment between two minutes the next full minute follows", "* * * * *", "", "2026-01-01T00:00:30.5Z", "2026-01-01T00:01:00Z"},
		{"a daily schedule fires at midnight of its time zone", "@daily", "Europe/Berlin", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00+01:00 2026-01-03T00:00:00+01:00"},
		{"a schedule for February 29 fires in leap years only", "0 0 29 2 *", "", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z 2032-02-29T00:00:00Z"},
		{"a schedule with day of month and day of week fires on each day that matches either", "0 0 13 * 5", "", "2026-02-01T00:00:00Z", "2026-02-06T00:00:00Z 2026-02-13T00:00:00Z"},

		{"spring: a time before the skipped hour fires as usual", "30 1 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:30:00+01:00 2026-03-30T01:30:00+02:00"},
		{"spring: a time in the skipped hour fires at its end", "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00"},
		{"spring: two times in the skipped hour fire once", "0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00 2026-03-30T02:30:00+02:00"},
		{"spring: a time in the skipped hour and its end fire once", "0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00"},
		{"spring: each half hour fires half an hour after the last one", "*/30 * * * *", "Europe/Berlin", "2026-03-29T01:15:00+01:00", "2026-03-29T01:30:00+01:00 2026-03-29T03:00:00+02:00 2026-03-29T03:30:00+02:00"},
		{"spring: a schedule at minute 15 of every hour has no time in the skipped hour", "15 * * * *", "Europe/Berlin", "2026-03-29T01:10:00+01:00", "2026-03-29T01:15:00+01:00 2026-03-29T03:15:00+02:00"},
		{"spring: a schedule at midnight fires at 01:00 if midnight is skipped", "@daily", "America/Havana", "2026-03-07T12:00:00Z", "2026-03-08T01:00:00-04:00 2026-03-09T00:00:00-04:00"},

		{"autumn: a time in the repeated hour fires only the first time", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T02:30:00+02:00 2026-10-26T02:30:00+01:00"},
		{"autumn: within the repeated hour, the next time is on the next day", "30 2 * * *", "Europe/Berlin", "2026-10-25T02:10:00+01:00", "2026-10-26T02:30:00+01:00"},
		{"autumn: each half hour fires in both hours", "*/30 * * * *", "Europe/Berlin", "2026-10-25T02:00:00+02:00", "2026-10-25T02:30:00+02:00 2026-10-25T02:00:00+01:00 2026-10-25T02:30:00+01:00 2026-10-25T03:00:00+01:00"},
		{"autumn: each hour in a list of hours fires once", "0 1-3 * * *", "Europe/Berlin", "2026-10-25T00:30:00+02:00", "2026-10-25T01:00:00+02:00 2026-10-25T02:00:00+02:00 2026-10-25T03:00:00+01:00"},
		{"autumn: a time in a repeated half hour fires only the first time", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00:00+11:00", "2026-04-05T01:45:00+11:00 2026-04-06T01:45:00+10:30"},
		{"a time zone that skips a whole day fires at the end of that day", "0 12 * * *", "Pacific/Apia", "2011-12-29T13:00:00-10:00", "2011-12-31T00:00:00+14:00 2011-12-31T12:00:00+14:00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := parsed(t, c.expression, c.zone)
			at, err := time.Parse(time.RFC3339Nano, c.after)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			now := at.UnixNano()
			for range strings.Fields(c.want) {
				now = s.Next(now)
				got = append(got, time.Unix(0, now).In(s.zone).Format(time.RFC3339))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("the times of the schedule after %s are\n     %s\nwant %s", c.after, text, c.want)
			}
		})
	}
}

// TestTimesOnlyAdvance: around a change of the clock, Next always returns a later time, and no time of the
// schedule lies between a moment and the result of Next.
func TestTimesOnlyAdvance(t *testing.T) {
	for _, zone := range []string{"", "Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia"} {
		for _, expression := range []string{"* * * * *", "*/30 * * * *", "30 2 * * *", "0 0-6 * * *", "@hourly", "@daily"} {
			s := parsed(t, expression, zone)
			for _, day := range []string{"2026-03-07", "2026-03-29", "2026-04-04", "2026-10-25", "2011-12-29"} {
				at, err := time.Parse(time.DateOnly, day)
				if err != nil {
					t.Fatal(err)
				}
				last := int64(0)
				for i := range 48 * 6 {
					now := at.Add(time.Duration(i) * 10 * time.Minute).UnixNano()
					next := s.Next(now)
					if next <= now || next < last || last > now && next != last {
						t.Fatalf("%q in zone %q: Next after %s returned %s, but the call before it returned %s", expression, zone, time.Unix(0, now).UTC(), time.Unix(0, next).UTC(), time.Unix(0, last).UTC())
					}
					last = next
				}
			}
		}
	}
}

func TestBadExpressions(t *testing.T) {
	for _, c := range []struct{ expression, want string }{
		{"0 0 30 2 *", "never fires"},
		{"0 0 31 4,6 *", "never fires"},
		{"* * * *", "five fields"},
		{"0 * * * * *", "five fields"},
		{"60 * * * *", "five fields"},
		{"", "five fields"},
		{"@every 5m", "five fields"},
		{"@often", "five fields"},
		{"TZ=UTC * * * * *", "cron.time_zone"},
		{"CRON_TZ=", "cron.time_zone"},
	} {
		if _, err := Parse(c.expression, time.UTC); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse of %q returned error %v, want one that contains %q", c.expression, err, c.want)
		}
	}
	for _, zone := range []string{"Europe/Nowhere", "Local", "../etc/passwd"} {
		if _, err := Zone(zone); err == nil {
			t.Errorf("Zone accepted the time zone %q, want an error", zone)
		}
	}
}

func parsed(t *testing.T, expression, zone string) *Schedule {
	t.Helper()
	at, err := Zone(zone)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(expression, at)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
