package filetest

import (
	"strconv"
	"strings"
)

// add records a directive in the current section.
func (p *parser) add(d Directive) {
	c := &p.sec.c
	if d.Text == "" && d.Kind != KindCheckEmpty {
		p.check(d.syntaxError(0, "%s needs a text", d.Name()))
		return
	}
	switch d.Kind {
	case KindRunCommand:
		p.addRun(d)
	case KindRunFunction:
		c.Evals = append(c.Evals, d)
	case KindFire, KindNoFire:
		p.addFires(d)
	case KindRemark:
		c.Remarks = append(c.Remarks, d)
	default:
		c.Checks = append(c.Checks, d)
	}
}

// addRun records a command line.
func (p *parser) addRun(d Directive) {
	s := &p.sec
	if p.first {
		if s.lastSource > 0 {
			p.check(d.syntaxError(0, "RUN lines of the file stand above the source of its first case"))
			return
		}
		s.desc.restart()
	}
	run, err := parseRun(d)
	if err != nil {
		p.check(err)
		return
	}
	s.runs = append(s.runs, run)
}

// expectError records an ERROR directive for a line, or for the next line of
// source if it is 0.
func (p *parser) expectError(d Directive, col, target int) {
	if d.Text == "" {
		p.check(d.syntaxError(0, "ERROR needs a text"))
		// It is recorded all the same, so that the mistake is reported once.
	}
	p.sec.c.Errors = append(p.sec.c.Errors, ExpectedError{Text: d.Text, Line: d.Line, Target: target, Col: col})
}

// addFires records the passes of a FIRE or NO-FIRE directive.
func (p *parser) addFires(d Directive) {
	for field := range strings.FieldsSeq(d.Text) {
		fire, msg := parseFire(d, field)
		for _, other := range p.sec.c.Fires {
			if other.Pass == fire.Pass && msg == "" {
				msg = "pass " + strconv.Quote(fire.Pass) + " is named twice"
			}
		}
		if msg != "" {
			p.check(d.syntaxError(strings.Index(d.Text, field), "%s", msg))
			return
		}
		p.sec.c.Fires = append(p.sec.c.Fires, fire)
	}
}

// parseFire reads one pass of a FIRE or NO-FIRE directive; msg says what is
// wrong with it.
func parseFire(d Directive, field string) (fire ExpectedFire, msg string) {
	name, count, counted := strings.Cut(field, "=")
	fire = ExpectedFire{Line: d.Line, Pass: name}
	if name == "" || strings.Contains(field, ",") {
		return fire, "pass names are separated by blanks"
	}
	if d.Kind == KindNoFire {
		if counted {
			return fire, "NO-FIRE takes names only"
		}
		return fire, ""
	}
	n, err := strconv.Atoi(count)
	switch {
	case !counted || err != nil || n < 0:
		return fire, "FIRE takes pass=n"
	case n == 0:
		return fire, "a pass that must not fire belongs in NO-FIRE"
	}
	fire.Count = n
	return fire, ""
}

// openOutput starts an OUTPUT block.
func (p *parser) openOutput(l line, d Directive) {
	c := &p.sec.c
	switch {
	case d.Text != "":
		p.check(d.syntaxError(0, "the text of OUTPUT follows it, on lines that begin with %q", outputMark))
	case c.Output != nil:
		p.check(d.syntaxError(0, "a case holds one OUTPUT block at most"))
	}
	p.sec.inOutput = true
	block := &OutputBlock{Line: l.number, indent: l.raw[:strings.IndexByte(l.raw, ';')]}
	if strings.HasSuffix(l.raw, "\r") {
		block.lineEnd = "\r"
	}
	c.Output = block
}

// outputLine reads a line of an OUTPUT block.
func (p *parser) outputLine(l line) {
	if !p.sec.inOutput {
		p.fail(l.number, strings.IndexByte(l.raw, ';')+1, `a line that begins with ";|" must follow "; OUTPUT:"`)
		return
	}
	text := strings.TrimSuffix(l.raw[strings.Index(l.raw, outputMark)+len(outputMark):], "\r")
	block := p.sec.c.Output
	block.Lines = append(block.Lines, strings.TrimPrefix(text, " "))
}

// validate finds mistakes that show only when the case is complete.
func (p *parser) validate(c *Case) {
	p.check(validateChecks(c.Checks))
	for _, fire := range c.Fires {
		if fire.Count == 0 && c.Description == "" {
			p.fail(fire.Line, 1, "a case with NO-FIRE needs a sentence above its source that says why nothing fires")
			break
		}
	}
	if len(c.Errors) > 0 && len(c.Evals) > 0 {
		p.fail(c.Evals[0].Line, 1, "a case with ERROR lines cannot be run")
	}
}
