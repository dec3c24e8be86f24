//go:build race

package setup

const underRace = true
