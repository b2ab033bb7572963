package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// Processes write to a folder among the system's temporary files. A program that is killed
// leaves its own. So each holds a lock in it, which the system takes back however the program
// ends, and whoever makes the next folder removes those that nobody holds.
const (
	folders   = "quill-native-*"
	ownerFile = "owner"
)

// folder is that of a compiler's processes.
type folder struct {
	path  string
	owner *flock.Flock
}

func newFolder() (*folder, error) {
	removeStale()
	for {
		path, err := os.MkdirTemp("", folders)
		if err != nil {
			return nil, err
		}
		owner, err := own(path, os.O_CREATE)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w; help: set TMPDIR to a folder where files can be locked", errors.Join(err, os.RemoveAll(path)))
		}
		if owner != nil {
			return &folder{path, owner}, nil
		}
		// Another program took it for one whose program is gone.
	}
}

// close removes the folder. Another program may remove it, too, as soon as nobody holds it.
func (f *folder) close() {
	_ = f.owner.Unlock()     // not every system removes a file that is open
	_ = os.RemoveAll(f.path) // it is in the system's folder for such
}

// own takes the lock of a folder; nil is returned if another program has it, or has removed
// the folder.
func own(path string, flag int) (*flock.Flock, error) {
	l := flock.New(filepath.Join(path, ownerFile), flock.SetFlag(os.O_RDWR|flag), flock.SetPermissions(0o600))
	if ok, err := l.TryLock(); !ok || err != nil {
		return nil, err
	}
	if _, err := os.Lstat(l.Path()); err != nil {
		return nil, errors.Join(err, l.Unlock()) // it was removed between opening and locking
	}
	return l, nil
}

// removeStale removes the folders of programs that are gone. What cannot be removed now, or
// is another user's, is left.
func removeStale() {
	all, _ := filepath.Glob(filepath.Join(os.TempDir(), folders)) // of a folder whose name is a pattern nothing is known
	for _, path := range all {
		owner, err := own(path, 0)
		switch {
		case owner != nil:
			_ = os.RemoveAll(path) // while it is held: its program may be about to hold it
			_ = owner.Unlock()
		case errors.Is(err, fs.ErrNotExist):
			_ = os.Remove(path) // only if it is empty: its program was killed at once, or will make another
		}
	}
}
