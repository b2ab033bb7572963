package passes

import (
	"fmt"
	"strings"

	"quill/ir"
)

// Parse reads a pipeline: names separated by commas, each with options in braces
// where they are not the default.
//
//	canonicalize,cse{scope=function},dce
//
// Errors show the place.
func (t Table) Parse(text string) (Pipeline, error) {
	r := reader{table: t, text: text}
	p, err := r.pipeline()
	if err != nil {
		return nil, err
	}
	if i, msg := p.problem(); msg != "" {
		return nil, r.errorf(r.places[i], "%s", msg)
	}
	return p, nil
}

// reader reads a pipeline's text.
type reader struct {
	table  Table
	text   string
	at     int
	places []int // where each step begins
}

func (r *reader) errorf(at int, format string, args ...any) error {
	return fmt.Errorf("%s\n  %s\n  %s^", fmt.Sprintf(format, args...), r.text, strings.Repeat(" ", at))
}

// word takes the characters up to one of a set, without blanks around them.
func (r *reader) word(until string) (word string, at int) {
	for r.at < len(r.text) && r.text[r.at] == ' ' {
		r.at++
	}
	at = r.at
	n := strings.IndexAny(r.text[at:], until)
	if n < 0 {
		n = len(r.text) - at
	}
	r.at += n
	return strings.TrimRight(r.text[at:r.at], " "), at
}

// next takes one character if it is there.
func (r *reader) next(c byte) bool {
	if r.at < len(r.text) && r.text[r.at] == c {
		r.at++
		return true
	}
	return false
}

func (r *reader) pipeline() (Pipeline, error) {
	if strings.TrimSpace(r.text) == "" {
		return Pipeline{}, nil
	}
	var p Pipeline
	for {
		s, err := r.step()
		if err != nil {
			return nil, err
		}
		p = append(p, s)
		if r.at == len(r.text) {
			return p, nil
		}
		if !r.next(',') {
			return nil, r.errorf(r.at, "want a comma between passes")
		}
	}
}

func (r *reader) step() (Step, error) {
	name, at := r.word(",{}=")
	s := Step{Pass: r.table.Find(name), options: map[string]value{}, texts: map[string]string{}}
	switch {
	case name == "":
		return s, r.errorf(at, "want the name of a pass")
	case s.Pass == nil:
		return s, r.errorf(at, "%s", r.table.unknown(name))
	}
	r.places = append(r.places, at)
	if !r.next('{') {
		return s, nil
	}
	for {
		if err := r.option(&s); err != nil {
			return s, err
		}
		switch {
		case r.next('}'):
			for r.at < len(r.text) && r.text[r.at] == ' ' {
				r.at++
			}
			return s, nil
		case !r.next(','):
			return s, r.errorf(r.at, "want } or a comma behind an option of %s", name)
		}
	}
}

func (r *reader) option(s *Step) error {
	name, at := r.word(",{}=")
	var opt *Option
	var names []string
	for i := range s.Pass.Options {
		names = append(names, s.Pass.Options[i].Name)
		if s.Pass.Options[i].Name == name {
			opt = &s.Pass.Options[i]
		}
	}
	switch {
	case len(names) == 0:
		return r.errorf(at, "%s has no options", s.Pass.Name)
	case name == "":
		return r.errorf(at, "want the name of an option of %s: %s", s.Pass.Name, strings.Join(names, ", "))
	case opt == nil:
		msg := fmt.Sprintf("%s has no option %q", s.Pass.Name, name)
		if help := ir.DidYouMean(name, names); help != "" {
			return r.errorf(at, "%s; %s", msg, help)
		}
		return r.errorf(at, "%s; it has %s", msg, strings.Join(names, ", "))
	case s.texts[name] != "":
		return r.errorf(at, "option %s is given twice", name)
	case !r.next('='):
		return r.errorf(r.at, "want = and a value behind option %s", name)
	}
	text, at := r.word(",{}")
	v, err := opt.parse(text)
	if err != nil {
		return r.errorf(at, "%s: %v", s.Pass.Name, err)
	}
	s.options[name], s.texts[name] = v, text
	return nil
}
