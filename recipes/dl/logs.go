package dl

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The library writes logs, a file a component, into $HABANA_LOGS; ranks may have
// folders of their own in it. Before software 1.20 they are the only place that says why
// a graph does not compile. A line begins with time, component and level:
//
//	[19:08:34.164951][GC       ][error][tid:44F8A] Failed to load tpc kernel for node ...

const (
	logFiles = 64       // most files looked at
	logBytes = 64 << 10 // most bytes read of a file, from its end
	logLines = 8        // most lines of errors told
	logLine  = 400      // most bytes told of a line
)

// logMark is how long the logs were when the library was loaded, so that errors of other
// runs are not told.
type logMark struct {
	folder string
	sizes  map[string]int64
}

// logFolder is where the library writes its logs, "" if that is unknown.
func logFolder() string {
	if d := os.Getenv("HABANA_LOGS"); d != "" {
		return d
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".habana_logs")
	}
	return ""
}

// MarkLogs forgets what the logs hold: errors from now on tell what is written from now
// on. No other method may be running.
func (l *Library) MarkLogs() { l.logs = markLogs(l.logs.folder) }

// MarkLogs gives a function for the last lines of errors that are written from now on to the
// logs in a folder, "" if there are none: for who watches another process.
func MarkLogs(folder string) (tail func() string) {
	m := markLogs(folder)
	return m.tail
}

func markLogs(folder string) logMark {
	m := logMark{folder: folder, sizes: map[string]int64{}}
	for _, f := range m.files() {
		if st, err := os.Stat(f); err == nil {
			m.sizes[f] = st.Size()
		}
	}
	return m
}

// files are the newest log files, the newest last.
func (m *logMark) files() []string {
	if m.folder == "" {
		return nil
	}
	var files []string
	for _, pattern := range []string{"*.log", "*/*.log"} {
		found, _ := filepath.Glob(filepath.Join(m.folder, pattern)) // a folder whose name is no pattern has no logs then
		files = append(files, found...)
	}
	written := map[string]int64{}
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && st.Mode().IsRegular() {
			written[f] = st.ModTime().UnixNano()
		}
	}
	files = slices.DeleteFunc(files, func(f string) bool { return written[f] == 0 })
	slices.SortFunc(files, func(a, b string) int {
		if written[a] != written[b] {
			return int(min(1, max(-1, written[a]-written[b])))
		}
		return strings.Compare(a, b)
	})
	return files[max(0, len(files)-logFiles):]
}

// tail is the last lines of errors that were written since the mark, "" if there are
// none.
func (m *logMark) tail() string {
	var lines []string
	for _, f := range m.files() {
		for _, l := range errorLines(f, m.sizes[f]) {
			lines = append(lines, filepath.Base(f)+": "+l)
		}
	}
	return strings.Join(lines[max(0, len(lines)-logLines):], " | ")
}

// errorLines are the lines of errors at the end of a file, from byte start on. A file
// that is shorter than that was begun anew.
func errorLines(file string, start int64) []string {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil
	}
	if st.Size() < start {
		start = 0
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(start, st.Size()-logBytes), logBytes))
	if err != nil {
		return nil
	}
	var lines []string
	for line := range bytes.Lines(data) {
		if bytes.Contains(line, []byte("[error]")) || bytes.Contains(line, []byte("[critical]")) {
			line = bytes.TrimSpace(line)
			lines = append(lines, strings.ToValidUTF8(string(line[:min(len(line), logLine)]), "?"))
		}
	}
	return lines[max(0, len(lines)-logLines):]
}
