// Package schedule computes the times of cron schedules. It is pure: the caller passes the time in.
//
// An expression has five fields (minute, hour, day of month, month, day of week) or is one of @hourly,
// @daily, @midnight, @weekly, @monthly, @yearly and @annually. If day of month and day of week are both
// restricted, the schedule fires on each day that matches either of them, as in every cron.
//
// Daylight saving time. When clocks are set forward, an hour is skipped; when they are set back, an hour is
// repeated. A schedule that fires in every hour follows elapsed time: it also fires in the repeated hour, and
// has no times in the skipped hour. Any other schedule follows local time, and each of its times fires once:
//
//   - A time in the skipped hour fires at its end: 02:30 fires at 03:00. If several
//     times are skipped, or the schedule also has 03:00, there is still one run at 03:00.
//   - A time in the repeated hour fires only when the clock shows it for the first time.
package schedule
