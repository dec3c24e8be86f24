// Package schedule computes the times of cron schedules. It is pure: the caller passes the time in.
//
// An expression has five fields (minute, hour, day of month, month, day of week) or is one of @hourly, @daily,
// @midnight, @weekly, @monthly, @yearly and @annually. If day of month and day of week are both restricted, a
// day that matches either of them counts, as in every cron.
//
// Daylight saving time. A schedule that fires in every hour follows the passage of time: it fires in the
// repeated hour too, and an hour that is left out has no times. Any other schedule follows the clock on the
// wall, and each of its times counts once:
//
//   - A time that the clock leaves out fires when the clock has moved on: 02:30 fires at 03:00. If several
//     times are left out, or the schedule also has 03:00, there is still one run at 03:00.
//   - A time that the clock shows twice fires the first time.
package schedule
