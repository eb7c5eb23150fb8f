package hardware

import "golang.org/x/sys/unix"

func processor() string {
	name, _ := unix.Sysctl("machdep.cpu.brand_string") // if there is none, the name is unknown
	return name
}
