package cluster

import (
	"errors"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/device/sealed"
)

// deviceless refuses what a remote.Opener may be asked for.
type deviceless struct{}

var errDeviceless = errors.New("this process leads a run, or starts processes of runs, and has no devices for others")

// Describe refuses.
func (deviceless) Describe(remote.Place) (remote.Description, error) {
	return remote.Description{}, errDeviceless
}

// Open refuses.
func (deviceless) Open(remote.Place) (device.Device, error) { return nil, errDeviceless }

// Script refuses.
func (deviceless) Script(string) (remote.Script, error) { return nil, errDeviceless }

// Folder refuses: nobody else writes for this process.
func (deviceless) Folder() string { return "" }

// Closed does nothing.
func (deviceless) Closed(remote.Place) {}

// Link refuses.
func (deviceless) Link(_ remote.Hello, c *sealed.Conn) error {
	return errors.Join(errDeviceless, c.Close())
}

// Join refuses.
func (deviceless) Join(_ remote.Member, c *sealed.Conn) error {
	return errors.Join(errors.New("this process leads no run"), c.Close())
}

// Start refuses.
func (deviceless) Start(_ remote.Process, c *sealed.Conn) error {
	return errors.Join(errors.New("this process starts no others"), c.Close())
}
