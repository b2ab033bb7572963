//go:build !linux

package kern

import "time"

// busy is how long threads goroutines run f.
func busy(threads int, f func(i int)) time.Duration { return spread(threads, f) }
