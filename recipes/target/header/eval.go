package header

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/alecthomas/participle/v2/lexer"
)

// number is the value of a constant expression.
type number struct {
	float bool
	i     int64 // if it is no float
	f     float64
}

func integer(i int64) *number { return &number{i: i} }

func (n *number) truth() bool { return n.value() != 0 }

// value is the number as a float, exact for what parameters default to.
func (n *number) value() float64 {
	if n.float {
		return n.f
	}
	return float64(n.i)
}

// constants evaluates expressions. What a name is, and what a type measures, depends on
// where it is.
type constants struct {
	lookup func(name string) (*number, error)
	sizeof func(*astType) (int64, error)
}

// text evaluates an expression in text.
func (c constants) text(s string, at lexer.Position) (*number, error) {
	e, err := exprParser.ParseString(at.Filename, s)
	if err != nil {
		return nil, fmt.Errorf("%q is no constant expression", s)
	}
	return c.expr(e)
}

// levels are the operators by precedence, the weakest first.
var levels = [][]string{{"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="}, {"<", ">", "<=", ">="}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"}}

// maxTerms bounds an expression.
const maxTerms = 100

func (c constants) expr(e *astExpr) (*number, error) {
	if len(e.Rest) > maxTerms {
		return nil, fmt.Errorf("an expression of more than %d terms", maxTerms)
	}
	return c.terms(e.First, e.Rest)
}

func (c constants) terms(first *astOperand, rest []*astTerm) (*number, error) {
	for i, t := range rest {
		if t.Op == "?" {
			return c.choose(first, rest, i)
		}
	}
	for _, level := range levels {
		for i := len(rest) - 1; i >= 0; i-- { // operators bind to the left
			for _, op := range level {
				if rest[i].Op != op {
					continue
				}
				x, err := c.terms(first, rest[:i])
				if err != nil {
					return nil, err
				}
				y, err := c.terms(rest[i].X, rest[i+1:])
				if err != nil {
					return nil, err
				}
				return binary(op, x, y)
			}
		}
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%s is not expected", rest[0].Op)
	}
	return c.operand(first)
}

// choose evaluates a ? b : c, of which the ? is a term.
func (c constants) choose(first *astOperand, rest []*astTerm, at int) (*number, error) {
	cond, err := c.terms(first, rest[:at])
	if err != nil {
		return nil, err
	}
	depth := 0
	for i := at + 1; i < len(rest); i++ {
		switch {
		case rest[i].Op == "?":
			depth++
		case rest[i].Op == ":" && depth > 0:
			depth--
		case rest[i].Op == ":" && cond.truth():
			return c.terms(rest[at].X, rest[at+1:i])
		case rest[i].Op == ":":
			return c.terms(rest[i].X, rest[i+1:])
		}
	}
	return nil, errors.New("a conditional without its second choice")
}

func binary(op string, x, y *number) (*number, error) {
	truth := func(b bool) (*number, error) {
		if b {
			return integer(1), nil
		}
		return integer(0), nil
	}
	a, b := x.value(), y.value()
	whole := !x.float && !y.float
	switch op {
	case "||":
		return truth(x.truth() || y.truth())
	case "&&":
		return truth(x.truth() && y.truth())
	case "==":
		return truth(a == b && (!whole || x.i == y.i))
	case "!=":
		return truth(a != b || whole && x.i != y.i)
	case "<":
		return truth(whole && x.i < y.i || !whole && a < b)
	case ">":
		return truth(whole && x.i > y.i || !whole && a > b)
	case "<=":
		return truth(whole && x.i <= y.i || !whole && a <= b)
	case ">=":
		return truth(whole && x.i >= y.i || !whole && a >= b)
	}
	if whole {
		return integers(op, x.i, y.i)
	}
	switch op {
	case "+":
		return &number{float: true, f: a + b}, nil
	case "-":
		return &number{float: true, f: a - b}, nil
	case "*":
		return &number{float: true, f: a * b}, nil
	case "/":
		return &number{float: true, f: a / b}, nil
	}
	return nil, fmt.Errorf("%s of floats", op)
}

func integers(op string, a, b int64) (*number, error) {
	if (op == "/" || op == "%") && b == 0 {
		return nil, errors.New("division by 0")
	}
	if (op == "<<" || op == ">>") && (b < 0 || b > 63) {
		return nil, fmt.Errorf("shift by %d", b)
	}
	switch op {
	case "+":
		return integer(a + b), nil
	case "-":
		return integer(a - b), nil
	case "*":
		return integer(a * b), nil
	case "/":
		return integer(a / b), nil
	case "%":
		return integer(a % b), nil
	case "<<":
		return integer(a << b), nil
	case ">>":
		return integer(a >> b), nil
	case "&":
		return integer(a & b), nil
	case "^":
		return integer(a ^ b), nil
	}
	return integer(a | b), nil
}

func (c constants) operand(o *astOperand) (*number, error) {
	v, err := c.primary(o)
	if err != nil {
		return nil, err
	}
	for i := len(o.Unary) - 1; i >= 0; i-- {
		n := *v
		switch o.Unary[i] {
		case "-":
			n.i, n.f = -n.i, -n.f
		case "!":
			n = *integer(0)
			if !v.truth() {
				n.i = 1
			}
		case "~":
			if n.float {
				return nil, errors.New("~ of a float")
			}
			n.i = ^n.i
		}
		v = &n
	}
	return v, nil
}

func (c constants) primary(o *astOperand) (*number, error) {
	switch {
	case o.Number != "":
		return literal(o.Number)
	case o.Char != "":
		s, err := strconv.Unquote(o.Char)
		if err != nil || len(s) != 1 {
			return nil, fmt.Errorf("%s is no character", o.Char)
		}
		return integer(int64(s[0])), nil
	case o.Word != "":
		return integer(map[string]int64{"true": 1}[o.Word]), nil
	case o.Sizeof != nil && c.sizeof != nil:
		n, err := c.sizeof(o.Sizeof)
		return integer(n), err
	case o.Cast != nil:
		v, err := c.expr(o.Cast.X)
		return cast(o.Cast.Type, v, err)
	case o.CCast != nil:
		v, err := c.operand(o.CCast.X)
		return cast(o.CCast.Type, v, err)
	case o.Paren != nil:
		return c.expr(o.Paren)
	case o.Name != nil && o.Call == nil && o.Name.Args == nil:
		return c.lookup(o.Name.String())
	}
	return nil, errors.New("not a constant that is understood")
}

// cast converts to a type of which only matters whether it is a float.
func cast(t *astType, v *number, err error) (*number, error) {
	if err != nil || v.float == (basic(t.Basic) == "float" || basic(t.Basic) == "double") {
		return v, err
	}
	if v.float {
		if math.Abs(v.f) >= math.MaxInt64 || v.f != v.f {
			return nil, fmt.Errorf("%v is no integer", v.f)
		}
		return integer(int64(v.f)), nil
	}
	return &number{float: true, f: float64(v.i)}, nil
}

// literal reads a number with C's suffixes.
func literal(s string) (*number, error) {
	text := strings.ToLower(strings.ReplaceAll(s, "'", ""))
	hex := strings.HasPrefix(text, "0x")
	if !hex && strings.ContainsAny(text, ".e") || !hex && strings.HasSuffix(text, "f") && !strings.HasPrefix(text, "0b") {
		single := strings.HasSuffix(text, "f")
		f, err := strconv.ParseFloat(strings.TrimRight(text, "fl"), 64)
		if single {
			f = float64(float32(f))
		}
		if err != nil || math.IsInf(f, 0) {
			return nil, fmt.Errorf("%s is no number", s)
		}
		return &number{float: true, f: f}, nil
	}
	u, err := strconv.ParseUint(strings.TrimRight(text, "ulz"), 0, 64)
	if err != nil {
		return nil, fmt.Errorf("%s is no number of 64 bits", s)
	}
	return integer(int64(u)), nil
}

// String spells a name as in the header.
func (n *astName) String() string {
	s := strings.Join(append(append([]string{}, n.Parts...), n.More...), "::")
	if n.Root {
		return "::" + s
	}
	return s
}
