package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

var (
	durationType = reflect.TypeFor[time.Duration]()
	listType     = reflect.TypeFor[[]string]()
	mapType      = reflect.TypeFor[map[string]string]()
)

// typed chooses the parser of a field by the field's type and tags. For an invalid value a parser returns
// only the rule that the value breaks ("must be …"); its caller adds the value and the source of the value.
func (s *setting) typed(f reflect.StructField) error {
	words := list(f.Tag.Get("oneof"))
	low, high := f.Tag.Get("min"), f.Tag.Get("max")
	switch {
	case f.Type == durationType:
		return s.duration(low, high, f.Tag.Get("seconds") == "true")
	case f.Type == listType:
		s.Type = "list"
		s.Rule = oneOf(words)
		s.parse = func(text string) (any, error) {
			out := list(text)
			for _, w := range out {
				if len(words) > 0 && !slices.Contains(words, w) {
					return nil, errors.New(s.Rule)
				}
			}
			return out, nil
		}
		return nil
	case f.Type == mapType:
		s.Type, s.Rule = "map", "must be key=value pairs, separated by commas"
		s.parse = func(text string) (any, error) {
			out := map[string]string{}
			for _, pair := range list(text) {
				k, v, ok := strings.Cut(pair, "=")
				if k = strings.TrimSpace(k); !ok || k == "" {
					return nil, errors.New(s.Rule)
				}
				out[k] = strings.TrimSpace(v)
			}
			return out, nil
		}
		return nil
	}
	switch f.Type.Kind() {
	case reflect.String:
		if f.Tag.Get("kind") == "yaml" {
			s.Type, s.Rule = "yaml", "must be YAML"
			s.parse = func(text string) (any, error) {
				var n yaml.Node
				if err := yaml.Unmarshal([]byte(text), &n); err != nil {
					return nil, fmt.Errorf("%s (%w)", s.Rule, err)
				}
				return text, nil
			}
			return nil
		}
		s.Type, s.Rule = "string", oneOf(words)
		s.parse = func(text string) (any, error) {
			if len(words) == 0 {
				return text, nil
			}
			for _, w := range words {
				if strings.EqualFold(w, strings.TrimSpace(text)) {
					return w, nil
				}
			}
			return nil, errors.New(s.Rule)
		}
		return nil
	case reflect.Bool:
		s.Type, s.Rule = "bool", "must be true or false"
		wordsOnly := f.Tag.Get("bool") == "word"
		s.parse = func(text string) (any, error) {
			text = strings.ToLower(strings.TrimSpace(text))
			v, err := strconv.ParseBool(text)
			if err != nil || wordsOnly && text != "true" && text != "false" {
				return nil, errors.New(s.Rule)
			}
			return v, nil
		}
		return nil
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return s.whole(f, low, high)
	case reflect.Float64:
		return s.real(low, high)
	}
	return fmt.Errorf("type %s is not supported", f.Type)
}

func oneOf(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return "must be one of " + strings.Join(words, ", ")
}

func (s *setting) whole(f reflect.StructField, low, high string) error {
	s.Type = "int"
	smallest, largest := int64(-1<<63), int64(1<<63-1)
	switch f.Type.Kind() {
	case reflect.Int32:
		smallest, largest = -1<<31, 1<<31-1
	case reflect.Uint, reflect.Uint64:
		smallest = 0
	case reflect.Uint16:
		smallest, largest = 0, 1<<16-1
	case reflect.Uint32:
		smallest, largest = 0, 1<<32-1
	}
	bounded := low != "" || high != ""
	if f.Tag.Get("kind") == "port" {
		s.Type, bounded = "port", true
		low, high = orElse(low, "1"), orElse(high, "65535")
	} else if kind := f.Tag.Get("kind"); kind != "" {
		return fmt.Errorf("kind %q is unknown", kind)
	}
	var err error
	if low != "" {
		if smallest, err = strconv.ParseInt(low, 10, 64); err != nil {
			return fmt.Errorf("min: %w", err)
		}
	}
	if high != "" {
		if largest, err = strconv.ParseInt(high, 10, 64); err != nil {
			return fmt.Errorf("max: %w", err)
		}
	}
	s.Rule = "must be a whole number"
	switch {
	case bounded && high != "":
		s.Rule = fmt.Sprintf("must be a whole number from %d to %d", smallest, largest)
	case bounded:
		s.Rule = fmt.Sprintf("must be a whole number of at least %d", smallest)
	}
	s.parse = func(text string) (any, error) {
		v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil || v < smallest || v > largest {
			return nil, errors.New(s.Rule)
		}
		return v, nil
	}
	return nil
}

func (s *setting) real(low, high string) error {
	s.Type, s.Rule = "float", "must be a number"
	var bounds [2]*float64
	for i, text := range []string{low, high} {
		if text == "" {
			continue
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("bound: %w", err)
		}
		bounds[i] = &v
		s.Rule += []string{", at least ", ", at most "}[i] + text
	}
	s.parse = func(text string) (any, error) {
		v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || v != v || bounds[0] != nil && v < *bounds[0] || bounds[1] != nil && v > *bounds[1] {
			return nil, errors.New(s.Rule)
		}
		return v, nil
	}
	return nil
}

func (s *setting) duration(low, high string, seconds bool) error {
	s.Type = "duration"
	s.Rule = "must be a duration such as 1m30s"
	if seconds {
		s.Rule += " or a whole number of seconds"
	}
	// A duration must not be negative, unless the tag min allows negative values.
	smallest, largest := time.Duration(0), time.Duration(1<<63-1)
	var err error
	if low != "" {
		if smallest, err = time.ParseDuration(low); err != nil {
			return fmt.Errorf("min: %w", err)
		}
		s.Rule += ", at least " + low
	}
	if high != "" {
		if largest, err = time.ParseDuration(high); err != nil {
			return fmt.Errorf("max: %w", err)
		}
		s.Rule += ", at most " + high
	}
	if low == "" {
		s.Rule += ", not negative"
	}
	s.parse = func(text string) (any, error) {
		text = strings.TrimSpace(text)
		v, err := time.ParseDuration(text)
		if err != nil && seconds {
			var n int64
			if n, err = strconv.ParseInt(text, 10, 64); err == nil {
				if n < 0 || n > int64(largest/time.Second) {
					return nil, errors.New(s.Rule)
				}
				v = time.Duration(n) * time.Second
			}
		}
		if err != nil || v < smallest || v > largest {
			return nil, errors.New(s.Rule)
		}
		return v, nil
	}
	return nil
}

// list splits a text at commas and drops blank elements.
func list(text string) []string {
	var out []string
	for _, w := range strings.Split(text, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
