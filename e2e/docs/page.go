package docs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Block is one command block of a page.
type Block struct {
	Line int // line of the block's fence in the page, from 1
	Text string

	On     string // machine on which the block runs; empty for that of the previous block
	Until  string // the command does not end by itself: wait until it has printed this text
	Says   []string
	Exit   int
	By     string  // name of the test that runs the block; empty: this package runs it
	Before []Token // commands to run first; the page does not show them
	Tokens []Token

	background bool // start the command and do not wait for its end
}

// Token names a word of a block, such as TOKEN, and the command whose output replaces it.
type Token struct{ Word, On, Command string }

var (
	tokenRule = regexp.MustCompile(`^([A-Z][A-Z_]*) from ([a-z0-9]+): (.+)$`)
	doRule    = regexp.MustCompile(`^before on ([a-z0-9]+): (.+)$`)
	byRule    = regexp.MustCompile(`^by (Test[A-Za-z0-9]+)$`)
)

// Parse returns the command blocks of a page. A fence without a language is an
// error: it could hold a command that no test runs.
func Parse(page string) ([]Block, error) {
	var (
		out     []Block
		rules   string
		ruleAt  int
		current *Block
		fence   string
	)
	for i, line := range strings.Split(page, "\n") {
		n, trimmed := i+1, strings.TrimSpace(line)
		switch {
		case current != nil && trimmed == "```":
			out, current = append(out, *current), nil
		case current != nil:
			current.Text += line + "\n"
		case fence != "":
			if trimmed == "```" {
				fence = ""
			}
		case strings.HasPrefix(trimmed, "```"):
			lang := strings.TrimPrefix(trimmed, "```")
			switch lang {
			case "sh":
				b := Block{Line: n}
				if err := b.rules(rules); err != nil {
					return nil, fmt.Errorf("line %d: %w", ruleAt, err)
				}
				current, rules = &b, ""
			case "":
				return nil, fmt.Errorf("line %d: a fence must name its language: sh for commands, text for anything else", n)
			case "bash", "shell", "console":
				return nil, fmt.Errorf("line %d: a block of commands must be marked sh, not %s", n, lang)
			default:
				fence = lang
			}
		case strings.HasPrefix(trimmed, "<!-- run:"):
			body, ok := strings.CutSuffix(strings.TrimPrefix(trimmed, "<!-- run:"), "-->")
			if !ok {
				return nil, fmt.Errorf("line %d: the comment does not end on its line", n)
			}
			rules, ruleAt = strings.TrimSpace(body), n
		case trimmed != "" && rules != "":
			return nil, fmt.Errorf("line %d: a run comment must stand directly above a command block", ruleAt)
		}
	}
	if current != nil || fence != "" {
		return nil, fmt.Errorf("the last fence is not closed")
	}
	return out, nil
}

func (b *Block) rules(text string) error {
	for rule := range strings.SplitSeq(text, "; ") {
		rule = strings.TrimSpace(rule)
		var err error
		switch name, rest, _ := strings.Cut(rule, " "); {
		case rule == "":
		case tokenRule.MatchString(rule):
			m := tokenRule.FindStringSubmatch(rule)
			b.Tokens = append(b.Tokens, Token{Word: m[1], On: m[2], Command: m[3]})
		case doRule.MatchString(rule):
			m := doRule.FindStringSubmatch(rule)
			b.Before = append(b.Before, Token{On: m[1], Command: m[2]})
		case byRule.MatchString(rule):
			b.By = byRule.FindStringSubmatch(rule)[1]
		case name == "on" && rest != "":
			b.On = rest
		case name == "until":
			b.Until, err = strconv.Unquote(rest)
		case name == "says":
			var says string
			says, err = strconv.Unquote(rest)
			b.Says = append(b.Says, says)
		case name == "exit":
			b.Exit, err = strconv.Atoi(rest)
		default:
			return fmt.Errorf("run comment %q: unknown; doc.go lists the rules", rule)
		}
		if err != nil {
			return fmt.Errorf("run comment %q: %w", rule, err)
		}
	}
	return nil
}
