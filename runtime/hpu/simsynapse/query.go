package simsynapse

import (
	"slices"
)

// InvalidID is the launch id of a name that a recipe does not have, and of entries that a
// launch skips.
const InvalidID = ^uint64(0)

// TensorInfo is what the library tells of a persistent tensor of a recipe.
type TensorInfo struct {
	Name    string
	ID      uint64
	Type    int32
	DType   int32
	Dims    []uint64 // fastest first
	Section uint32
	Offset  uint64
	IsInput bool
}

// query makes a call about a recipe.
func query[R any](l *Library, name string, h Handle, a args, body func(*recipe) (R, Status)) (R, Status) {
	a["recipe"] = h
	return call(l, name, a, func() (out R, st Status) {
		r, st := lookup(l, l.recipes, h, "recipe")
		if st != Success {
			return out, st
		}
		return body(r)
	})
}

// WorkspaceSize is synWorkspaceGetSize.
func (l *Library) WorkspaceSize(h Handle) (uint64, Status) {
	return query(l, "synWorkspaceGetSize", h, args{}, func(r *recipe) (uint64, Status) { return r.file.Workspaces[0], Success })
}

// LaunchAmount is synTensorRetrieveLaunchAmount, and synTensorRetrievePersistentAmount.
func (l *Library) LaunchAmount(h Handle) (uint32, Status) {
	return query(l, "synTensorRetrieveLaunchAmount", h, args{}, func(r *recipe) (uint32, Status) { return uint32(len(r.file.Tensors)), Success })
}

// LaunchIDs is synTensorRetrieveLaunchIds: ids of the first n tensors.
func (l *Library) LaunchIDs(h Handle, n uint32) ([]uint64, Status) {
	return query(l, "synTensorRetrieveLaunchIds", h, args{"n": n}, func(r *recipe) ([]uint64, Status) {
		if int(n) > len(r.file.Tensors) {
			return nil, l.refused(InvalidArgument, "%d launch ids of %d", n, len(r.file.Tensors))
		}
		ids := make([]uint64, n)
		for i := range ids {
			ids[i] = uint64(i)
		}
		return ids, Success
	})
}

// IDsByName is synTensorRetrieveIds: InvalidID for names that are not there.
func (l *Library) IDsByName(h Handle, names []string) ([]uint64, Status) {
	return query(l, "synTensorRetrieveIds", h, args{"names": names}, func(r *recipe) ([]uint64, Status) {
		ids := make([]uint64, len(names))
		for i, n := range names {
			ids[i] = r.id(n)
		}
		return ids, Success
	})
}

func (r *recipe) id(name string) uint64 {
	for i := range r.file.Tensors {
		if r.file.Tensors[i].Name == name {
			return uint64(i)
		}
	}
	return InvalidID
}

func (r *recipe) info(id uint64) TensorInfo {
	t := &r.file.Tensors[id]
	return TensorInfo{t.Name, id, int32(t.TensorType), int32(t.DType), slices.Clone(t.Dims()), uint32(t.Section), t.Offset, t.IsInput != 0}
}

// LaunchInfos is synTensorRetrieveLaunchInfoById.
func (l *Library) LaunchInfos(h Handle, ids []uint64) ([]TensorInfo, Status) {
	return query(l, "synTensorRetrieveLaunchInfoById", h, args{"ids": ids}, func(r *recipe) ([]TensorInfo, Status) {
		list := make([]TensorInfo, len(ids))
		for i, id := range ids {
			if id >= uint64(len(r.file.Tensors)) {
				return nil, l.refused(InvalidArgument, "launch id %#x of recipe %q", id, r.program.Name)
			}
			list[i] = r.info(id)
		}
		return list, Success
	})
}

// InfosByName is synTensorRetrieveInfosByName.
func (l *Library) InfosByName(h Handle, names []string) ([]TensorInfo, Status) {
	return query(l, "synTensorRetrieveInfosByName", h, args{"names": names}, func(r *recipe) ([]TensorInfo, Status) {
		list := make([]TensorInfo, len(names))
		for i, n := range names {
			id := r.id(n)
			if id == InvalidID {
				return nil, l.refused(InvalidArgument, "recipe %q has no persistent tensor %q", r.program.Name, n)
			}
			list[i] = r.info(id)
		}
		return list, Success
	})
}

// PersistentNames is synTensorRetrieveNames.
func (l *Library) PersistentNames(h Handle, n uint32) ([]string, Status) {
	return query(l, "synTensorRetrieveNames", h, args{"n": n}, func(r *recipe) ([]string, Status) {
		if int(n) > len(r.file.Tensors) {
			return nil, l.refused(InvalidArgument, "%d names of %d", n, len(r.file.Tensors))
		}
		names := make([]string, n)
		for i := range names {
			names[i] = r.file.Tensors[i].Name
		}
		return names, Success
	})
}

// RecipeAttributes is synRecipeGetAttribute.
func (l *Library) RecipeAttributes(h Handle, attributes []int32) ([]uint64, Status) {
	return query(l, "synRecipeGetAttribute", h, args{"attributes": attributes}, func(r *recipe) ([]uint64, Status) {
		f := r.file
		values := make([]uint64, len(attributes))
		for i, a := range attributes {
			switch a {
			case 0: // of the workspace
				values[i] = f.Workspaces[0]
			case 1:
				values[i] = uint64(len(f.Tensors))
			case 2: // of the host
				data, err := f.Encode()
				if err != nil {
					return nil, l.refused(Fail, "recipe %q: %v", f.Name, err)
				}
				values[i] = uint64(len(data) - 4)
			case 3: // external tensors
			case 4: // of persistent tensors: the library's structure and the names
				for k := range f.Tensors {
					values[i] += 312 + uint64(len(f.Tensors[k].Name)+1)
				}
			case 5: // of constants
				for _, s := range f.ConstSections {
					values[i] += s.Size + 24
				}
			case 6: // of the device
				values[i] = f.Workspaces[1] + f.Workspaces[2]
			default:
				return nil, l.refused(InvalidArgument, "recipe attribute %d, want 0 to 6", a)
			}
		}
		return values, Success
	})
}

// SectionProperty is synRecipeSectionGetProp: size (0) of a constant section and whether a
// section is one (2). Data (1) is an address, which SectionData gives.
func (l *Library) SectionProperty(h Handle, id uint32, property int32) (uint64, Status) {
	return query(l, "synRecipeSectionGetProp", h, args{"section": id, "property": property}, func(r *recipe) (uint64, Status) {
		for _, s := range r.file.ConstSections {
			if uint32(s.Section) == id && property == 0 {
				return s.Size, Success
			} else if uint32(s.Section) == id && property == 2 {
				return 1, Success
			}
		}
		if property == 2 {
			return 0, Success
		}
		return 0, l.refused(Fail, "property %d of section %d, which is not constant", property, id)
	})
}

// SectionData is the data of a constant section.
func (l *Library) SectionData(h Handle, id uint32) ([]byte, Status) {
	return query(l, "synRecipeSectionGetProp", h, args{"section": id, "property": 1}, func(r *recipe) ([]byte, Status) {
		for _, s := range r.file.ConstSections {
			if uint32(s.Section) == id && s.HasData {
				return s.Data, Success
			}
		}
		return nil, l.refused(Fail, "data of section %d, which is not constant or was cleared", id)
	})
}

// SectionHostBuffersClear is synRecipeSectionHostBuffersClear.
func (l *Library) SectionHostBuffersClear(h Handle, ids []uint32) Status {
	_, st := query(l, "synRecipeSectionHostBuffersClear", h, args{"sections": ids}, func(r *recipe) (none, Status) {
		for i := range r.file.ConstSections {
			if s := &r.file.ConstSections[i]; slices.Contains(ids, uint32(s.Section)) {
				s.HasData, s.Data = false, nil
			}
		}
		return none{}, Success
	})
	return st
}
