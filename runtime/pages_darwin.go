package runtime

func adviseLarge([]byte) {}
