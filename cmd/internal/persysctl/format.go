package persysctl

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/cmd/persysctl/screen"
)

// age formats the time since ts, or "-" if ts is not set.
func (c *cli) age(ts *timestamppb.Timestamp) string {
	if ts == nil {
		return screen.None
	}
	return screen.Span(c.now().Sub(ts.AsTime()))
}

// moment formats a time in the local time zone, with the date unless it is today.
func (c *cli) moment(ts *timestamppb.Timestamp) string {
	if ts == nil {
		return screen.None
	}
	t, now := ts.AsTime().In(c.zone), c.now().In(c.zone)
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04:05")
}

// ago formats a time as its age, followed by the time itself.
func (c *cli) ago(ts *timestamppb.Timestamp) string {
	if ts == nil {
		return screen.None
	}
	return c.age(ts) + " ago (" + c.moment(ts) + ")"
}
