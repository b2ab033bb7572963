package buckets

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"quill/recipes"
)

// MaxTrace bounds the bytes of a trace.
const MaxTrace = 64 << 20

// step is a line of a trace: each of Batch sequences has Context tokens in the
// cache (their mean, if they differ) and gets Query more. More than one is a
// prefill chunk, of one sequence; one is a decode step.
type step struct {
	Query   *int `json:"query"`
	Context *int `json:"context"`
	Batch   *int `json:"batch"`
}

// trace counts the shapes that a trace's steps need. It is JSON lines or CSV with
// a head line, of query, context and batch.
func (l *limits) trace(t *Text) (map[recipes.Bucket]int64, error) {
	if first := bytes.TrimLeft(t.Src, " \t\r\n"); len(first) == 0 {
		return nil, fmt.Errorf("%s:1: the trace has no steps", t.Path)
	} else if first[0] == '{' {
		return l.traceJSON(t)
	}
	return l.traceCSV(t)
}

func (l *limits) traceJSON(t *Text) (map[recipes.Bucket]int64, error) {
	shapes := map[recipes.Bucket]int64{}
	for i, line := range strings.Split(string(t.Src), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		var s step
		dec := json.NewDecoder(strings.NewReader(line))
		dec.DisallowUnknownFields()
		err := dec.Decode(&s)
		if err == nil {
			if _, more := dec.Token(); more != io.EOF {
				err = errors.New("more than one value; write a step a line")
			}
		}
		if err == nil {
			err = l.count(shapes, &s)
		}
		if err != nil {
			return nil, t.lineError(i, line, err)
		}
	}
	return shapes, nil
}

func (l *limits) traceCSV(t *Text) (map[recipes.Bucket]int64, error) {
	r := csv.NewReader(bytes.NewReader(t.Src))
	r.TrimLeadingSpace, r.ReuseRecord = true, true
	var columns []string
	shapes := map[recipes.Bucket]int64{}
	for {
		record, err := r.Read()
		if err == io.EOF {
			break
		}
		if e, ok := errors.AsType[*csv.ParseError](err); ok {
			return nil, fmt.Errorf("%s:%d: %w", t.Path, e.Line, e.Err)
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Path, err)
		}
		if columns == nil {
			columns, err = head(record)
		} else {
			err = l.record(shapes, columns, record)
		}
		if err != nil {
			line, _ := r.FieldPos(0)
			return nil, t.lineError(line-1, strings.Join(record, ","), err)
		}
	}
	if len(shapes) == 0 {
		return nil, fmt.Errorf("%s:1: the trace has no steps", t.Path)
	}
	return shapes, nil
}

// head are the columns of a CSV file.
func head(record []string) ([]string, error) {
	seen := map[string]bool{}
	for _, name := range record {
		if name != "query" && name != "context" && name != "batch" || seen[name] {
			return nil, fmt.Errorf("%q: the first line has to be the columns, each of query, context and batch once", name)
		}
		seen[name] = true
	}
	if len(seen) != 3 {
		return nil, errors.New("the first line has to be the columns query, context and batch")
	}
	return append([]string(nil), record...), nil
}

func (l *limits) record(shapes map[recipes.Bucket]int64, columns, record []string) error {
	var s step
	for i, name := range columns {
		n, err := count(record[i])
		if err != nil {
			return fmt.Errorf("%s: %q is not a count", name, record[i])
		}
		switch name {
		case "query":
			s.Query = &n
		case "context":
			s.Context = &n
		case "batch":
			s.Batch = &n
		}
	}
	return l.count(shapes, &s)
}

// count adds what a step needs, or says why the deployment does not admit it.
func (l *limits) count(shapes map[recipes.Bucket]int64, s *step) error {
	for _, f := range []struct {
		name  string
		value *int
		least int
	}{{"query", s.Query, 1}, {"context", s.Context, 0}, {"batch", s.Batch, 1}} {
		if f.value == nil {
			return fmt.Errorf("%s is missing", f.name)
		}
		if *f.value < f.least {
			return fmt.Errorf("%s is %d, want %d or more", f.name, *f.value, f.least)
		}
	}
	q, c, b := *s.Query, *s.Context, *s.Batch
	switch {
	case q > l.length || c > l.length-q:
		return fmt.Errorf("%d tokens after %d are more than max_model_len %d", q, c, l.length)
	case q > 1 && b > 1:
		return fmt.Errorf("batch is %d: a prefill chunk (query above 1) is of one sequence", b)
	case q > l.chunk:
		return fmt.Errorf("query is %d, more than max_batched_tokens %d", q, l.chunk)
	case b > l.seqs:
		return fmt.Errorf("batch is %d, want 1 to %d (max_num_seqs, or what sharing allows)", b, l.seqs)
	}
	need := recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: q, Blocks: ceilDiv(c, l.block)}
	if q == 1 {
		need = recipes.Bucket{Phase: recipes.Decode, Seqs: b, Blocks: b * ceilDiv(c+1, l.block)}
		if most := l.most(b); need.Blocks > most {
			return fmt.Errorf("%d sequences of %d tokens refer to %d blocks, more than %d (what sharing allows)", b, c+1, need.Blocks, most)
		}
	}
	shapes[need]++
	return nil
}
