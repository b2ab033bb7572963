// Package filetest runs tests that are written as text files of compiler IR.
// A file holds the input, the commands to run on it, and what is expected of
// them, all in one place; the package knows nothing about the IR itself. It
// reads comments, hands text to handlers supplied by the caller, and compares
// what comes back. This comment is the reference of the format.
//
// A test of the caller's names the handlers and the directory:
//
//	func TestPasses(t *testing.T) {
//		r := &filetest.Runner{
//			Commands:  map[string]filetest.Command{"opt": opt, "same": same, "run": eval},
//			RoundTrip: roundTrip,
//		}
//		r.RunDir(t, "testdata")
//	}
//
// # Files and cases
//
// A test file ends in .qir. A line comment begins with ';'. A comment line of
// five or more dashes separates cases:
//
//	; RUN: opt -passes=fuse-rel-bias,sub-block{budget=64MiB}
//	; RUN: same -seeds=8 -atol=1e-5          (interpret before and after, compare)
//
//	; A relative bias read only by attention becomes the mask of the fused call.
//	func @f(...) { ... }
//	; FIRE: fuse-rel-bias=1 sub-block=1
//	; CHECK-LABEL: func @f
//	; CHECK-NOT:   softmax
//	; CHECK:       [[A:%.*]] = fused_sdpa {{.*}}
//	; CHECK-NEXT:  graph_break "sdpa sub-block 1 of 2"
//	; -----
//	; The bias is also returned, so it must stay: no fusion.
//	func @g(...) { ... }
//	; NO-FIRE: fuse-rel-bias
//	; REMARK: fuse-rel-bias: not fused: %b is also returned
//
// A case is everything between two separators, comments included, and that is
// the text a handler receives, so a position it reports needs only a shift by
// the case's first line to become a position in the file. Every case needs at
// least one line of source. The one exception is a first section made only of
// prose and RUN lines: it is the header of the file, not a case.
//
// The first sentence of the first prose comment above a case's source is the
// case's description. It is part of the subtest's name and of every failure.
// In the first section only prose below the RUN lines counts, since what is
// above them describes the file.
//
// A directive is a comment that begins with one of the words below and a
// colon, directly joined. All but ERROR stand on a line of their own. Comments
// that look like a misspelt directive ("CHECK-NXT:", "CHECK foo", "Error:",
// "NO FIRE:") are errors, because a directive that is silently prose is a test
// that silently tests nothing.
//
// # RUN
//
// "; RUN: name arguments" runs the command of that name, in-process, on each
// case. RUN lines above the first case's source apply to the whole file; RUN
// lines inside a later case replace them for that case. Arguments are split as
// a shell would: by white space, with '…' (verbatim), "…" (backslash escapes)
// and backslash. An unquoted word that begins with '(' starts a note, which
// must run to the final ')' of the line and is ignored.
//
// A command returns a [Result]. Its output must be looked at by something in
// the case, unless it reports that it checked itself: a RUN line whose result
// nothing looks at is a failure.
//
// # CHECK
//
// CHECK lines are matched against the output of every command of the case that
// does not check itself.
//
//	CHECK:         found after the previous match, on the same or a later line
//	CHECK-NEXT:    found on the line after the previous match
//	CHECK-SAME:    found on the line of the previous match, after it
//	CHECK-EMPTY:   the line after the previous match is empty (no text here)
//	CHECK-COUNT-n: found n times in a row, as n CHECK lines would; more may follow
//	CHECK-NOT:     not found between the previous match and the next one
//	CHECK-DAG:     adjacent CHECK-DAG lines match in any order, without overlap
//	CHECK-LABEL:   found; splits checks and output into blocks of their own
//
// Labels are located first, one after the other. The checks between two labels
// then see only the output from the first label's match to the second's, so a
// failure in one function does not hide or cause failures in the next: each
// block reports its own first failure.
//
// A group of CHECK-DAG lines is searched from the end of what was matched
// before it, each line taking the first place that no earlier line of the
// group took; what follows the group is searched from the end of its last
// match. A CHECK-NOT between CHECK-DAG lines splits them into two groups, in
// order. CHECK-NEXT, CHECK-SAME and CHECK-EMPTY need a line before them that
// matches something.
//
// The text of a CHECK line is literal, except for:
//
//	{{regex}}        a regular expression in Go's syntax
//	[[NAME:regex]]   the same, and NAME now stands for the text it matched
//	[[NAME]]         the text NAME stands for
//
// Braces and bracket expressions within a regex nest, so {{[0-9]{2}}} and
// [[A:%[a-z]]] end where they seem to. "[[" followed by anything but a name
// is literal, so [[1, 2], [3, 4]] is what it looks like. A name is forgotten at the
// next CHECK-LABEL unless it begins with '$'. A name may be used on the line
// that defines it: "mul [[X:%.*]], [[X]]" finds a square. CHECK-LABEL cannot
// hold variables, because labels are located before anything else. Definitions
// in a CHECK-NOT are visible only within that line.
//
// A run of blanks, in a CHECK line or in the output, equals one space, and
// blanks at the end of an output line are dropped. A match lies within one
// line. ^ and $ mean the line's ends.
//
// # ERROR
//
// "; ERROR: text" says that an error whose message contains text is reported
// on the line it stands at the end of. On a line of its own it speaks of the
// next line that has source, or, if there is none, of the end of the case (any
// line after the last source line). ERROR@7 also fixes the column. A line may
// end in several: "x ; ERROR: one ; ERROR: two". Every expected error must be
// reported and every reported error expected. A string that is not closed
// swallows the rest of its line, so its ERROR goes on the line above.
//
// Errors are collected from all commands of the case, the same error counting
// once; with no RUN line they come from the round trip's parse. A case with
// ERROR lines is not round-tripped.
//
// # FIRE, NO-FIRE, REMARK
//
// "; FIRE: pass=n …" says how often passes rewrote something, exactly;
// "; NO-FIRE: pass …" that they ran and rewrote nothing. Both look at every
// command that ran the pass, and one must have: a misspelt pass in NO-FIRE
// would otherwise always hold. Passes that are not named are free to fire. A
// case with NO-FIRE must have a description, which says why nothing fires.
//
// "; REMARK: text" says that some command reports a remark containing text.
// Two REMARK lines need two remarks; more remarks may be reported.
//
// # run
//
// "; run: @f(1, 2) == 3" hands its text, as the only argument, to the command
// named "run", once per line, whatever the RUN lines say. It fails if the
// command reports an error.
//
// # OUTPUT
//
// "; OUTPUT:" introduces the exact output expected, as lines that begin with
// ";|" and a space:
//
//	; OUTPUT:
//	;| func @f() {
//	;| }
//
// Like CHECK it is compared with every command that does not check itself. A
// final newline does not matter. With QUILL_BLESS=1 in the environment the
// runner rewrites these blocks, and nothing else, with what the commands
// produced.
//
// # Round trip
//
// Every case without ERROR lines is parsed and printed twice, and both
// printings must be equal. A case may consist of nothing else.
package filetest
