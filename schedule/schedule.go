package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // so that time zones also work on machines without a time zone database

	"github.com/robfig/cron/v3"
)

// Schedule is a parsed expression with its time zone. It never changes.
type Schedule struct {
	times     cron.Schedule // times in local time, represented as UTC
	zone      *time.Location
	everyHour bool
}

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Zone returns a time zone by its name in the time zone database. "" means UTC.
func Zone(name string) (*time.Location, error) {
	switch {
	case name == "Local", name == "localtime", name == "posixrules", strings.HasPrefix(name, "posix/"), strings.HasPrefix(name, "right/"):
		return nil, fmt.Errorf("is no time zone: %q differs from machine to machine; write a name such as Europe/Berlin", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, errors.New("is no time zone: write UTC or a name such as Europe/Berlin")
	}
	return zone, nil
}

// Parse parses an expression. The error says what is wrong with it.
func Parse(expression string, zone *time.Location) (*Schedule, error) {
	text := strings.TrimSpace(expression)
	switch {
	case strings.Contains(text, "="):
		return nil, errors.New("must not name a time zone: set cron.time_zone")
	case strings.HasPrefix(text, "@every") || strings.HasPrefix(text, "@reboot"):
		return nil, errors.New("must have five fields, or be @hourly, @daily, @weekly, @monthly or @yearly")
	}
	times, err := parser.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("must have five fields such as \"30 2 * * *\", or be @hourly, @daily, @weekly, @monthly or @yearly: %w", err)
	}
	s := &Schedule{times: times, zone: zone}
	if spec, ok := times.(*cron.SpecSchedule); ok {
		const hours = 1<<24 - 1
		spec.Location = time.UTC
		s.everyHour = spec.Hour&hours == hours
	}
	if s.times.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, errors.New("never fires: no such day exists")
	}
	return s, nil
}

// Next returns the first time of the schedule after a time, both in Unix nanoseconds; 0 if there is none within
// the next five years.
func (s *Schedule) Next(after int64) int64 {
	at := s.next(time.Unix(0, after).In(s.zone))
	if at.IsZero() {
		return 0
	}
	return at.UnixNano()
}

func (s *Schedule) next(after time.Time) time.Time {
	if s.everyHour {
		return s.elapsed(after)
	}
	for wall := onWall(after); ; {
		if wall = s.times.Next(wall); wall.IsZero() {
			return wall
		}
		if at := s.instant(wall); at.After(after) {
			return at
		}
	}
}

// elapsed returns the first time of the schedule that is later than after. The schedule fires in every hour.
// elapsed searches each period with a constant UTC offset (between two changes of the clock) separately,
// because local time and elapsed time advance equally in such a period.
func (s *Schedule) elapsed(after time.Time) time.Time {
	for {
		offset := offsetOf(after)
		wall := s.times.Next(onWall(after))
		if wall.IsZero() {
			return wall
		}
		at := wall.Add(-offset).In(s.zone)
		_, end := after.ZoneBounds()
		if end.IsZero() || at.Before(end) {
			return at
		}
		// The first second with the new offset belongs to this period too.
		if at := s.times.Next(onWall(end).Add(-time.Nanosecond)); !at.IsZero() && at.Equal(onWall(end)) {
			return end.In(s.zone)
		}
		after = end
	}
}

// instant returns the moment at which the local clock first shows or passes the given local time.
func (s *Schedule) instant(wall time.Time) time.Time {
	at := wall.Add(-36 * time.Hour).In(s.zone) // further back than the largest UTC offset plus the largest clock change
	for {
		_, end := at.ZoneBounds()
		candidate := wall.Add(-offsetOf(at)).In(s.zone)
		if end.IsZero() || candidate.Before(end) {
			start, _ := at.ZoneBounds()
			if candidate.Before(start) {
				return start.In(s.zone) // the local time was skipped
			}
			return candidate
		}
		at = end.In(s.zone)
	}
}

// onWall returns the local time of a moment, represented as UTC.
func onWall(t time.Time) time.Time { return t.UTC().Add(offsetOf(t)) }

func offsetOf(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}
