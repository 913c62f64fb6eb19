/** Installs the database servers that the tests use, as far as this machine allows. `npm test` calls it by itself. */
import { installServers } from '../test/services/install.ts'

installServers((line) => console.log(line))
